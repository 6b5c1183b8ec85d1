"""Files of predictions: one per rank or merged, whole or not at all, and never mixed with others.

Ranks are threads that call the hooks of their own writer, as a prediction does.
"""

import csv
import errno
import gc
import io
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch.trainer.states import RunningStage

from lightning_shards import (
    LoaderConfig,
    ShardDataModule,
    ShardPredictionWriter,
    SplitConfig,
    collectives,
)
from lightning_shards.callbacks import predictions
from lightning_shards.callbacks.predictions import (
    PREDICTION_FORMATS,
    BatchSamples,
    WrittenFile,
    merge_files,
    rows_of,
    samples_of,
)
from lightning_shards.errors import ConfigError, FileAccessError, ShardError
from tests.callbacks.quiet_fits import EvaluatedWeight, quiet_trainer

COUNTS = [5, 0, 9, 3]
SAMPLES = sum(COUNTS)
TIMEOUT_S = 30


class Ranks:
    """Collectives of threads: each knows its own number."""

    def __init__(self, num_ranks: int) -> None:
        self.own = threading.local()
        self.barrier = threading.Barrier(num_ranks, timeout=TIMEOUT_S)
        self.values: list[Any] = [None] * num_ranks

    def gather(self, value: Any) -> list[Any]:
        self.values[self.own.rank] = value
        self.barrier.wait()
        values = list(self.values)
        self.barrier.wait()
        return values


def predicted(batch: Any) -> dict[str, Any]:
    return {"label": batch["label"], "text": [f"is\n{key}" for key in batch["__key__"]]}


def predict_rank(
    writer: ShardPredictionWriter,
    trainer: Any,
    step: Callable[[Any], Any],
    look: Callable[[], None] | None,
) -> Exception | None:
    """Call the hooks of one rank in the order of a prediction; the error that ended it."""
    loaders = trainer.predict_loop._combined_loader.flattened
    try:
        writer.setup(trainer, None, "predict")
        writer.on_predict_start(trainer, None)
        for number, loader in enumerate(loaders):
            for step_number, batch in enumerate(loader):
                writer.on_predict_batch_start(trainer, None, batch, step_number, number)
                outputs = step(batch)
                writer.on_predict_batch_end(trainer, None, outputs, batch, step_number, number)
        if look:
            look()
        writer.on_predict_end(trainer, None)
    except Exception as error:  # noqa: BLE001 the test looks at it
        writer.on_exception(trainer, None, error)
        return error
    return None


@pytest.fixture
def urls(pack_shards):
    return pack_shards(COUNTS)


@pytest.fixture
def make_data(urls, tmp_path):
    def made(split: dict[str, Any] | None = None, **options: Any) -> ShardDataModule:
        return ShardDataModule(
            predict=SplitConfig(**{"urls": urls} | (split or {})),
            fields={"label": "cls"},
            loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
            **{"batch_size": 3, "num_workers": 0} | options,
        )

    return made


@pytest.fixture
def predict(make_data, monkeypatch):
    """Predict on as many ranks as there are writers: the error of each, or None."""

    def run(
        writers: Sequence[ShardPredictionWriter],
        data: ShardDataModule | None = None,
        *,
        step: Callable[[Any], Any] = predicted,
        num_loaders: int = 1,
        places: Sequence[int] | None = None,
        look: Callable[[], None] | None = None,
    ) -> list[Exception | None]:
        size, data = len(writers), data or make_data()
        places = places or range(size)
        ranks = Ranks(size)
        for module in (collectives, predictions):
            monkeypatch.setattr(module, "gather", ranks.gather)

        def rank(number: int) -> Exception | None:
            ranks.own.rank = number
            place = {"rank": places[number], "num_replicas": len(set(places))}
            loaders = [
                data.loader("predict", rank=place["rank"], world_size=place["num_replicas"])
                for _ in range(num_loaders)
            ]
            trainer = SimpleNamespace(
                distributed_sampler_kwargs=place,
                num_nodes=1,
                global_rank=number,
                is_global_zero=number == 0,
                state=SimpleNamespace(stage=RunningStage.PREDICTING),
                predict_loop=SimpleNamespace(_combined_loader=SimpleNamespace(flattened=loaders)),
            )
            return predict_rank(writers[number], trainer, step, look)

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(rank, range(size)))

    return run


def writers(folder: Path, number: int, file_format: Any = "csv", **options: Any):
    return [ShardPredictionWriter(str(folder), file_format, **options) for _ in range(number)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def ids_in(path: Path) -> list[list[int]]:
    if path.suffix == ".parquet":
        return pq.read_table(path)["__id__"].to_pylist()
    return [list(map(int, row[0].split(":"))) for row in cells(path)]


def cells(path: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(path.read_text(), newline="")))[1:]


@pytest.mark.parametrize("file_format", PREDICTION_FORMATS)
def test_merged_files_are_equal_for_all_ranks_and_hold_each_sample_once_in_order(
    tmp_path, predict, file_format
):
    merged = []
    for size in (1, 2, 3):
        folder = tmp_path / f"out-{size}"
        assert predict(writers(folder, size, file_format, merge=True)) == [None] * size
        assert names(folder) == [f"predictions.{file_format}"]
        merged.append(folder / f"predictions.{file_format}")
    assert len({path.read_bytes() for path in merged}) == 1
    assert ids_in(merged[0]) == [
        [shard, i] for shard, count in enumerate(COUNTS) for i in range(count)
    ]


def test_rows_that_did_not_come_in_order_are_merged_to_the_same_file(tmp_path, predict, make_data):
    predict(writers(tmp_path / "in_order", 2, merge=True))
    data = make_data({"sampling": "shuffled", "shuffle_run": 1})
    assert predict(writers(tmp_path / "shuffled", 2, merge=True), data) == [None, None]
    merged = [tmp_path / folder / "predictions.csv" for folder in ("in_order", "shuffled")]
    assert merged[0].read_bytes() == merged[1].read_bytes()


def test_each_rank_writes_a_file_and_what_only_fills_a_place_has_no_row(
    tmp_path, predict, make_data, caplog
):
    data = make_data({"urls": str(tmp_path / "shards/shard-000003.tar")}, batch_size=2)
    caplog.set_level("INFO")
    assert predict(writers(tmp_path / "out", 4), data) == [None] * 4  # 3 samples
    assert names(tmp_path / "out") == [f"predictions-0000{i}-of-00004.csv" for i in range(4)]
    rows = [row for name in names(tmp_path / "out") for row in cells(tmp_path / "out" / name)]
    assert sorted(row[:3] for row in rows) == [
        ["0:0", "000014", "4"],
        ["0:1", "000015", "5"],
        ["0:2", "000016", "6"],
    ]
    assert f"predictions: 3 rows in {tmp_path}/out/predictions-*.csv" in caplog.text


def test_several_loaders_have_a_file_each(tmp_path, predict):
    assert predict(writers(tmp_path / "a", 2), num_loaders=2) == [None, None]
    assert names(tmp_path / "a") == [
        f"predictions-loader{loader}-0000{rank}-of-00002.csv"
        for loader in (0, 1)
        for rank in (0, 1)
    ]
    predict(writers(tmp_path / "b", 2, merge=True), num_loaders=2)
    first, second = names(tmp_path / "b")
    assert (first, second) == ("predictions-loader0.csv", "predictions-loader1.csv")
    assert (tmp_path / "b" / first).read_bytes() == (tmp_path / "b" / second).read_bytes()


@pytest.mark.parametrize("file_format", PREDICTION_FORMATS)
def test_no_file_is_seen_before_the_end_nor_after_an_error(tmp_path, predict, file_format):
    seen: list[str] = []

    def fail() -> None:
        seen.extend(names(tmp_path / "out"))
        raise KeyError("of the model")

    [error] = predict(writers(tmp_path / "out", 1, file_format), look=fail)
    assert isinstance(error, KeyError)
    del error
    gc.collect()  # a writer that is not closed says so now
    [part] = seen
    assert part.startswith(f".predictions-00000-of-00001.{file_format}.")
    assert names(tmp_path / "out") == []
    assert predict(writers(tmp_path / "out", 1)) == [None]


def no_batch(batch: Any) -> None:
    pytest.fail("a batch was predicted")


@pytest.mark.parametrize("name", ["predictions-00000-of-00001.parquet", "other.csv"])
def test_a_folder_with_other_results_is_refused_by_all_ranks_before_any_batch(
    tmp_path, predict, name
):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / name).touch()
    given = [*writers(tmp_path / "new", 1), *writers(tmp_path / "used", 1)]
    errors = predict(given, step=no_batch)
    assert [type(error) for error in errors] == [ConfigError, ConfigError]
    assert f"used already holds {name}, and" in str(errors[0])
    assert "name another folder" in str(errors[1])


def test_other_files_and_those_of_killed_runs_do_not_matter(tmp_path, predict):
    (tmp_path / "config.yaml").touch()
    (tmp_path / ".predictions-00000-of-00001.csv.0123456789abcdef.part").touch()
    (tmp_path / "table.parquet").touch()
    assert predict(writers(tmp_path, 1)) == [None]


def test_ranks_that_do_not_share_a_folder_cannot_merge_and_keep_their_files(tmp_path, predict):
    given = [writers(tmp_path / f"machine{rank}", 1, merge=True)[0] for rank in range(2)]
    errors = predict(given)
    assert [type(error) for error in errors] == [FileAccessError, FileAccessError]
    assert "predictions-00001-of-00002.csv is not on the machine of rank 0" in str(errors[1])
    assert names(tmp_path / "machine0") == ["predictions-00000-of-00002.csv"]
    assert names(tmp_path / "machine1") == ["predictions-00001-of-00002.csv"]


def test_ranks_of_different_formats_are_refused(tmp_path, predict):
    given = [*writers(tmp_path, 1, "csv"), *writers(tmp_path, 1, "parquet")]
    for error in predict(given, step=no_batch):
        assert "the ranks disagree on the format of predictions" in str(error)


def test_a_sample_that_was_served_twice_has_two_rows(tmp_path, predict, make_data):
    data = make_data({"sampling": "resampled", "dataset_size": 40})
    assert predict(writers(tmp_path / "out", 2, "parquet", merge=True), data) == [None, None]
    ids = ids_in(tmp_path / "out/predictions.parquet")
    assert ids == sorted(ids)
    assert len(ids) >= 36 > len({*map(tuple, ids)})


@pytest.mark.parametrize("types", [{"x": "int64", "z": "int64"}, {"y": "int64", "x": "int64"}])
def test_files_of_different_columns_are_not_merged(tmp_path, types):
    given = [WrittenFile("0.csv", 1, {"x": "int64", "y": "int64"}), WrittenFile("1.csv", 1, types)]
    for file in given:
        (tmp_path / file.name).write_text("__id__,__key__,x,y\n0:1,a,1,2\n")
    with pytest.raises(ConfigError, match="differ in the names, the order or the types"):
        merge_files(tmp_path, given, "predictions.csv", "csv")
    assert names(tmp_path) == ["0.csv", "1.csv"]


def test_a_disk_that_fills_up_is_told_with_the_file_and_leaves_none(tmp_path, predict, monkeypatch):
    def full(writer: Any, rows: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PREDICTION_FORMATS["csv"], "_add", full)
    [error] = predict(writers(tmp_path / "out", 1, "csv"))
    assert "predictions-00000-of-00001.csv cannot be written: No space left" in str(error)
    assert names(tmp_path / "out") == []


def test_batches_return_the_same_columns(tmp_path, predict):
    columns = iter([{"x": torch.zeros(3)}, {"x": torch.zeros(3, dtype=torch.int64)}])
    [error] = predict(writers(tmp_path / "out", 1), step=lambda _: next(columns))
    assert isinstance(error, ConfigError)
    assert "'x' (int64), and for the batches before 'x' (float32)" in str(error)


def test_a_tuple_batch_is_refused_before_it_is_predicted(tmp_path, predict, make_data):
    data = make_data(batch_format="tuple")
    [error] = predict(writers(tmp_path / "out", 1), data, step=no_batch)
    assert "set batch_format='dict' in the data module" in str(error)


@pytest.mark.parametrize(
    ("folder", "file_format", "message"),
    [
        ("s3://bucket/out", "csv", "to a local folder, not to 's3://bucket/out'"),
        ("", "csv", "to a local folder"),
        ("out", "json", "file_format must be one of"),
    ],
)
def test_settings_that_cannot_work_are_refused(folder, file_format, message):
    with pytest.raises(ConfigError, match=message):
        ShardPredictionWriter(folder, file_format)


def test_a_trainer_writes_what_it_predicts_and_only_once(tmp_path, make_data):
    writer = ShardPredictionWriter(str(tmp_path / "out"), "csv", merge=True)
    trainer = quiet_trainer(tmp_path, [writer], limit_predict_batches=2)
    assert trainer.predict(EvaluatedWeight(), make_data(), return_predictions=False) is None
    rows = cells(tmp_path / "out/predictions.csv")
    assert [row[0] for row in rows] == ["0:0", "0:1", "0:2", "0:3", "0:4", "2:0"]
    assert [row[1:] for row in rows] == [[f"{number:06d}", str(number)] for number in range(6)]
    with pytest.raises(ShardError, match=r"already holds predictions\.csv"):
        trainer.predict(EvaluatedWeight(), make_data(), return_predictions=False)


# --- which predictions become rows, and files of both formats


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
