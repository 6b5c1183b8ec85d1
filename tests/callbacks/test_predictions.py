"""Which predictions become rows, what is said of those that cannot, and files of both formats."""

import csv
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from lightning_shards.callbacks.predictions import (
    PREDICTION_FORMATS,
    BatchSamples,
    ShardPredictionWriter,
    rows_of,
    samples_of,
)
from lightning_shards.errors import ConfigError

BATCH = {
    "__key__": ["a", "b", "c"],
    "__id__": torch.tensor([[0, 1], [0, 2], [5, 0]]),
    "__weight__": torch.tensor([1.0, 0.0, 1.0]),
}


def rows(prediction):
    return rows_of(prediction, samples_of(BATCH))


def test_a_tensor_has_a_row_for_each_sample_that_counts():
    predicted = rows(torch.arange(6, dtype=torch.float64).reshape(3, 2))
    assert predicted.keys == ["a", "c"]
    assert predicted.ids.tolist() == [[0, 1], [5, 0]]
    assert np.array(predicted.columns["prediction"]).tolist() == [[0, 1], [4, 5]]
    assert predicted.types == {"prediction": "float64[]"}


def test_a_dict_has_a_column_for_each_entry():
    predicted = rows(
        {
            "class": torch.tensor([1, 2, 3]),
            "caption": ("x", "y", "z"),
            "score": [0.5, 1, True],
            "loss": [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)],
            "boxes": [torch.zeros(2, 4), torch.zeros(0, 4), torch.ones(1, 4)],
            "tokens": [[1, 2], [3], [4]],
            "mask": np.ones((3, 2, 2), bool),
        }
    )
    assert predicted.types == {
        "class": "int64",
        "caption": "text",
        "score": "float64",
        "loss": "float32",
        "boxes": "float32[][]",
        "tokens": "int64[]",
        "mask": "bool[][]",
    }
    assert predicted.columns["caption"] == ["x", "z"]
    assert predicted.columns["loss"] == [1, 3]
    assert [boxes.shape for boxes in predicted.columns["boxes"]] == [(2, 4), (1, 4)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_short_floating_point_numbers_become_float32(dtype):
    given = torch.tensor([1.0, 2.0, -0.5], requires_grad=True).to(dtype)
    column = rows(given).columns["prediction"]
    assert {value.dtype for value in column} == {np.dtype(np.float32)}
    assert column == [1, -0.5]


@pytest.mark.parametrize(
    ("prediction", "message"),
    [
        (None, "predict_step returned None for a batch of 3 samples; .* wants a tensor with one"),
        (torch.tensor(1.0), r"returned a tensor of shape \(\) for a batch of 3 samples"),
        (torch.zeros(2, 3), r"returned a tensor of shape \(2, 3\) for a batch of 3 samples"),
        ([1, 2, 3], r"returned \[1, 2, 3\] for a batch of 3"),
        ({}, "returned {}"),
        ("abc", "returned 'abc'"),
        ({"x": torch.zeros(4)}, r"returned a tensor of shape \(4,\) for 'x' for a batch of 3"),
        ({"x": ["a", "b"]}, r"returned \['a', 'b'\] for 'x' for a batch of 3"),
        ({"x": 1.0}, "returned 1.0 for 'x'"),
        ({"x": {"y": 1}}, "returned {'y': 1} for 'x'"),
        ({"x": ["a", 1, 2]}, "values for 'x' that no file holds .*: return real numbers"),
        ({"x": [None, None, None]}, "values for 'x' that no file holds .object."),
        ({"x": [[1], [[2]], [3]]}, r"'x' that no file holds .int64\[\] and int64\[\]\[\]"),
        ({"x": [[1, [2]], [3], [4]]}, "values for 'x' that no file holds"),
        ({"x": torch.zeros(3, dtype=torch.complex64)}, "no file holds .complex64."),
        ({"x": torch.zeros(3, 3).to_sparse()}, "no file holds .*dense tensors"),
        ({"x": np.zeros(3, np.longdouble)}, "no file holds"),
        ({"x": [2**70, 1, 1]}, "no file holds"),
        ({"__key__": ["a", "b", "c"]}, "entry '__key__'.* written from the batch"),
        ({1: torch.zeros(3)}, "entry 1; names are texts"),
    ],
)
def test_anything_else_is_refused_with_what_is_wanted(prediction, message):
    with pytest.raises(ConfigError, match=message):
        rows(prediction)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((torch.zeros(3),), "this one is a tuple; set batch_format='dict'"),
        ({"image": 1, "__key__": ["a"]}, r"this one has \['__key__', 'image'\]"),
        (BATCH | {"__key__": ["a"]}, r"1 keys, `__id__` of shape \(3, 2\) .* keep them"),
        (BATCH | {"__weight__": torch.ones(2)}, r"`__weight__` of shape \(2,\): a hook"),
    ],
)
def test_a_batch_that_does_not_say_which_samples_it_holds_is_refused(batch, message):
    with pytest.raises(ConfigError, match=message):
        samples_of(batch)


TEXTS = ['a, "b"', "c\nd", "e\rf\r\n", "=é", "bytes\udcff", ""]


def samples(count, first=0):
    numbers = np.arange(first, first + count)
    return BatchSamples(
        [f"dir/{number:03d}" for number in numbers],
        np.stack([numbers // 4, numbers % 4], axis=1),
        list(range(count)),
    )


def write(path, *batches):
    """Writes these pairs of a prediction and its samples to a file."""
    file = PREDICTION_FORMATS[path.suffix[1:]](path)
    for batch in batches:
        file.write(rows_of(*batch))
    file.close()
    return path


def test_csv_is_what_csv_readers_read(tmp_path):
    prediction = {"text": TEXTS, "score": torch.tensor([0.1, 1e20, -2, 1 / 3, torch.nan, 0])}
    path = write(tmp_path / "x.csv", (prediction | {"is_on": [True] * 6}, samples(6)))
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["__id__", "__key__", "text", "score", "is_on"]
    assert [row[0] for row in rows] == ["0:0", "0:1", "0:2", "0:3", "1:0", "1:1"]
    assert [row[1] for row in rows] == samples(6).keys
    assert [row[2] for row in rows] == [*TEXTS[:4], "bytes\\udcff", ""]
    assert [row[3] for row in rows] == ["0.1", "1e+20", "-2.0", "0.33333334", "nan", "0.0"]
    assert {row[4] for row in rows} == {"True"}


def test_several_values_of_a_sample_are_refused_for_csv_with_a_remedy(tmp_path):
    with pytest.raises(ConfigError, match=r"'prediction' has 1 dim.* parquet"):
        write(tmp_path / "x.csv", (torch.zeros(2, 1), samples(2)))


def test_parquet_has_lists_for_dimensions(tmp_path):
    values = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    boxes = [torch.zeros(0, 4), torch.ones(2, 4)]
    prediction = {"values": values, "boxes": boxes, "none": torch.zeros(2, 0, 3), "text": ["a", ""]}
    prediction |= {"half": np.ones(2, np.float16), "swapped": np.ones(2, ">f4")}
    table = pq.read_table(write(tmp_path / "x.parquet", (prediction, samples(2))))
    assert table.column_names == ["__key__", "__id__", *prediction]
    assert table["__id__"].to_pylist() == [[0, 0], [0, 1]]
    assert table["values"].to_pylist() == values.tolist()
    assert table["boxes"].to_pylist() == [[], [[1.0] * 4] * 2]
    assert table["none"].to_pylist() == [[], []]
    assert table["text"].to_pylist() == ["a", ""]
    assert table["half"].to_pylist() == table["swapped"].to_pylist() == [1.0, 1.0]


def test_without_pyarrow_the_default_is_csv_and_a_line_says_so(monkeypatch, tmp_path, caplog):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with caplog.at_level("INFO"):
        ShardPredictionWriter(str(tmp_path))
    assert caplog.messages[-1:] == [
        "predictions are written as csv, because pyarrow is not installed"
    ]


def test_without_pyarrow_parquet_names_the_extra_and_the_other_format(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"lightning-shards\[table\].* csv"):
        ShardPredictionWriter("out")
