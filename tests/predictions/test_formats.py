"""The formats hold what was predicted, as readers of others find it, and read their own rows."""

import csv
import io
import json
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from webdataset.tariterators import group_by_keys, tar_file_expander

from lightning_shards.errors import ConfigError
from lightning_shards.predictions import parquet_format
from lightning_shards.predictions.formats import PREDICTION_FORMATS
from lightning_shards.predictions.rows import BatchSamples, rows_of

TEXTS = ['a, "b"', "c\nd", "e\rf\r\n", "=é", "bytes\udcff", ""]


def samples(count, first=0):
    numbers = np.arange(first, first + count)
    return BatchSamples(
        [f"dir/{number:03d}" for number in numbers],
        np.stack([numbers // 4, numbers % 4], axis=1),
        np.ones(count, bool),
    )


def write(file_format, *batches):
    """The bytes of a file of these pairs of a prediction and its samples."""
    file = io.BytesIO()
    rows = [rows_of(*batch) for batch in batches]
    writer = PREDICTION_FORMATS[file_format].write(file, rows[0].types)
    for batch in rows:
        writer.write(batch)
    writer.finish()
    return file.getvalue()


def test_csv_is_what_csv_readers_read(tmp_path):
    prediction = {"text": TEXTS, "score": torch.tensor([0.1, 1e20, -2, 1 / 3, torch.nan, 0])}
    written = write("csv", (prediction | {"is_on": [True] * 6}, samples(6)))
    header, *rows = csv.reader(io.StringIO(written.decode(), newline=""))
    assert header == ["__id__", "__key__", "text", "score", "is_on"]
    assert [row[0] for row in rows] == ["0:0", "0:1", "0:2", "0:3", "1:0", "1:1"]
    assert [row[1] for row in rows] == samples(6).keys
    assert [row[2] for row in rows] == [*TEXTS[:4], "bytes\\udcff", ""]
    assert [row[3] for row in rows] == ["0.1", "1e+20", "-2.0", "0.33333334", "nan", "0.0"]
    assert {row[4] for row in rows} == {"True"}


def test_csv_refuses_values_of_several_dimensions_with_a_remedy():
    with pytest.raises(ConfigError, match=r"'prediction' has 1 dim.* parquet or tar"):
        write("csv", (torch.zeros(2, 1), samples(2)))


def test_parquet_has_lists_for_dimensions(tmp_path):
    values = torch.arange(24, dtype=torch.float16).reshape(2, 3, 4)
    boxes = [torch.zeros(0, 4), torch.ones(2, 4)]
    prediction = {"values": values, "boxes": boxes, "none": torch.zeros(2, 0, 3), "text": ["a", ""]}
    (tmp_path / "x.parquet").write_bytes(write("parquet", (prediction, samples(2))))
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.column_names == ["__key__", "__id__", *prediction]
    assert table["__id__"].to_pylist() == [[0, 0], [0, 1]]
    assert table["values"].to_pylist() == values.tolist()
    assert table["boxes"].to_pylist() == [[], [[1.0] * 4] * 2]
    assert table["none"].to_pylist() == [[], []]
    assert table["text"].to_pylist() == ["a", ""]


def test_bytes_that_are_no_text_do_not_make_a_parquet_unreadable(tmp_path):
    (tmp_path / "x.parquet").write_bytes(write("parquet", ({"text": TEXTS}, samples(6))))
    assert pq.read_table(tmp_path / "x.parquet")["text"].to_pylist()[4] == "bytes\\udcff"


def test_tar_is_what_webdataset_reads(tmp_path):
    prediction = {"logits": torch.eye(2), "text": ["é", ""], "class": torch.tensor([3, 4])}
    path = tmp_path / "x.tar"
    path.write_bytes(write("tar", (prediction, samples(2))))
    with path.open("rb") as stream:
        files = tar_file_expander([{"url": str(path), "stream": stream}])
        read = list(group_by_keys(files))
    assert [sample["__key__"] for sample in read] == ["dir/000", "dir/001"]
    assert [json.loads(sample["id.json"]) for sample in read] == [[0, 0], [0, 1]]
    assert np.load(io.BytesIO(read[1]["logits.npy"])).tolist() == [0, 1]
    assert np.load(io.BytesIO(read[1]["class.npy"])).tolist() == 4
    assert [sample["text.txt"].decode() for sample in read] == ["é", ""]


def test_tar_refuses_names_that_would_be_read_as_others():
    with pytest.raises(ConfigError, match=r"'dir/000.Logits.npy'.* lower case"):
        write("tar", ({"Logits": torch.zeros(1)}, samples(1)))
    dotted = BatchSamples(["a.b"], np.zeros((1, 2), int), np.ones(1, bool))
    with pytest.raises(ConfigError, match=r"'a.b.prediction.npy'.* parquet or csv"):
        write("tar", (torch.zeros(1), dotted))


def test_tar_refuses_a_key_twice_in_a_row():
    with pytest.raises(ConfigError, match="two samples in a row have the key 'dir/000'"):
        write("tar", (torch.zeros(1), samples(1)), (torch.zeros(1), samples(1)))


@pytest.mark.parametrize("file_format", PREDICTION_FORMATS)
def test_rows_that_are_read_give_the_same_bytes_again(file_format, tmp_path):
    prediction = {"text": TEXTS, "number": torch.arange(6)}
    if file_format != "csv":
        prediction["boxes"] = [torch.ones(number, 4) for number in range(6)]
    first = write(file_format, (prediction, samples(6)))
    path = tmp_path / "first"
    path.write_bytes(first)
    again = io.BytesIO()
    writer = PREDICTION_FORMATS[file_format].write(again, rows_of(prediction, samples(6)).types)
    ids = []
    for sample_id, row in PREDICTION_FORMATS[file_format].read(path):
        ids.append(sample_id)
        writer.write_row(row)
    writer.finish()
    assert ids == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert again.getvalue() == first


@pytest.mark.parametrize("file_format", PREDICTION_FORMATS)
def test_a_file_without_rows_can_be_read(file_format, tmp_path):
    none = BatchSamples(["a"], np.zeros((1, 2), int), np.zeros(1, bool))
    (tmp_path / "x").write_bytes(write(file_format, ({"x": ["text"]}, none)))
    assert list(PREDICTION_FORMATS[file_format].read(tmp_path / "x")) == []


def test_columns_have_the_order_of_the_first_batch(tmp_path):
    first, second = {"low": torch.zeros(1), "high": torch.ones(1)}, {"high": [1.0], "low": [0.0]}
    second = {name: torch.tensor(value) for name, value in second.items()}
    written = write("csv", (first, samples(1)), (second, samples(1, 1))).decode().splitlines()
    assert written == ["__id__,__key__,low,high", "0:0,dir/000,0.0,1.0", "0:1,dir/001,0.0,1.0"]


def test_row_groups_hold_few_bytes_wherever_the_large_rows_stand(monkeypatch):
    monkeypatch.setattr(parquet_format, "_GROUP_BYTES", 10_000)
    boxes = [torch.zeros(0 if number < 20 else 100, 4) for number in range(40)]
    whole = write("parquet", ({"boxes": boxes}, samples(40)))
    single = [({"boxes": [box]}, samples(1, number)) for number, box in enumerate(boxes)]
    assert write("parquet", *single) == whole
    metadata = pq.ParquetFile(io.BytesIO(whole)).metadata
    groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert sum(groups) == 40
    assert groups[0] > 20
    assert max(groups[1:]) <= 6


def test_row_groups_depend_on_the_rows_and_not_on_the_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_format, "_GROUP_BYTES", 1000)
    values = torch.arange(100, dtype=torch.float64).reshape(50, 2)
    whole = write("parquet", (values, samples(50)))
    parts = [(values[i : i + 7], samples(len(values[i : i + 7]), i)) for i in range(0, 50, 7)]
    assert write("parquet", *parts) == whole
    metadata = pq.ParquetFile(io.BytesIO(whole)).metadata
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert len(sizes) > 2
    assert len(set(sizes[:-1])) == 1
    assert sum(sizes) == 50


def test_without_pyarrow_parquet_names_the_extra_and_other_formats(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"lightning-shards\[table\].*csv or tar"):
        parquet_format.require_pyarrow()
