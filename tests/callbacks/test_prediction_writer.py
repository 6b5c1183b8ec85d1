"""Files of predictions: one per rank, whole or not at all, and never mixed with others.

Ranks are threads that call the hooks of their own writer, as a prediction does.
"""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn

from lightning_shards import (
    ShardPredictionWriter,
    SplitConfig,
    collectives,
)
from lightning_shards.callbacks import predictions
from lightning_shards.callbacks.predictions import rows_of
from lightning_shards.errors import ConfigError, ShardError
from tests.callbacks.quiet_fits import EvaluatedWeight, quiet_trainer

COUNTS = [5, 0, 9, 3]
SAMPLES = [[shard, sample] for shard, count in enumerate(COUNTS) for sample in range(count)]
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


def predict_rank(writer, trainer, step):
    """Call the hooks of one rank in the order of a prediction; the error that ended it."""
    loaders = trainer.predict_loop._combined_loader.flattened
    try:
        writer.setup(trainer, None, "predict")
        writer.on_predict_start(trainer, None)
        for number, loader in enumerate(loaders):
            for step_number, batch in enumerate(loader):
                outputs = step(batch)
                writer.on_predict_batch_end(trainer, None, outputs, batch, step_number, number)
        writer.on_predict_end(trainer, None)
    except Exception as error:  # noqa: BLE001 the test looks at it
        writer.on_exception(trainer, None, error)
        return error
    return None


@pytest.fixture
def urls(pack_shards):
    return pack_shards(COUNTS)


@pytest.fixture
def make_data(urls, make_module):
    def made(split=None, **options):
        predict = SplitConfig(**{"urls": urls} | (split or {}))
        return make_module(predict=predict, **{"batch_size": 3} | options)

    return made


@pytest.fixture
def predict(make_data, monkeypatch):
    """Predict on as many ranks as there are writers: the error of each, or None."""

    def run(writers, data=None, *, step=predicted, num_loaders=1, places=None):
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
                state=SimpleNamespace(fn=TrainerFn.PREDICTING),
                predict_loop=SimpleNamespace(_combined_loader=SimpleNamespace(flattened=loaders)),
            )
            return predict_rank(writers[number], trainer, step)

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(rank, range(size)))

    return run


def writers(*folders: Path) -> list[ShardPredictionWriter]:
    return [ShardPredictionWriter(str(folder)) for folder in folders]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_files_of_all_ranks_hold_each_sample_once(tmp_path, predict, caplog, ranks):
    caplog.set_level("INFO")
    assert predict(writers(*[tmp_path / "out"] * ranks)) == [None] * ranks
    assert names(tmp_path / "out") == [
        f"predictions-{rank:05d}-of-{ranks:05d}.parquet" for rank in range(ranks)
    ]
    table = pq.read_table(tmp_path / "out").to_pydict()
    assert sorted(table["__id__"]) == SAMPLES
    assert table["label"] == [int(key) % 10 for key in table["__key__"]]
    assert table["text"] == [f"is\n{key}" for key in table["__key__"]]
    assert f"predictions: 17 rows in {tmp_path}/out/predictions-*.parquet" in caplog.text


def test_what_only_fills_a_place_has_no_row(tmp_path, predict, make_data):
    data = make_data({"urls": str(tmp_path / "shards/shard-000003.tar")}, batch_size=2)
    assert predict(writers(*[tmp_path / "out"] * 4), data) == [None] * 4  # 3 samples
    assert len(names(tmp_path / "out")) == 4
    assert sorted(pq.read_table(tmp_path / "out")["__id__"].to_pylist()) == [[0, 0], [0, 1], [0, 2]]


def test_processes_that_share_a_rank_write_its_file_once(tmp_path, predict):
    given = writers(*[tmp_path / "out"] * 4)
    assert predict(given, places=[0, 0, 1, 1]) == [None] * 4
    assert sorted(pq.read_table(tmp_path / "out")["__id__"].to_pylist()) == SAMPLES


def test_several_loaders_have_a_file_each(tmp_path, predict):
    assert predict(writers(*[tmp_path] * 2), num_loaders=2) == [None, None]
    of_ranks = [f"{rank:05d}-of-00002.parquet" for rank in (0, 1)]
    assert [name for name in names(tmp_path) if name.endswith(".parquet")] == [
        f"predictions-loader{loader}-{end}" for loader in (0, 1) for end in of_ranks
    ]


def test_no_file_is_seen_before_the_end_nor_after_an_error(tmp_path, predict):
    seen: list[str] = []

    def fail(batch: Any) -> Any:
        seen.extend(names(tmp_path / "out"))
        return {} if seen else predicted(batch)

    [error] = predict(writers(tmp_path / "out"), step=fail)
    assert "returned {} for a batch of 3 samples" in str(error)
    [part] = seen
    assert part.startswith(".predictions-00000-of-00001.parquet.")
    assert names(tmp_path / "out") == []
    assert predict(writers(tmp_path / "out")) == [None]


def test_a_folder_with_other_results_is_refused_by_all_ranks_before_any_batch(tmp_path, predict):
    (tmp_path / "used").mkdir()
    (tmp_path / "used/other.parquet").touch()
    errors = predict(writers(tmp_path / "new", tmp_path / "used"), step=pytest.fail)
    assert [type(error) for error in errors] == [ConfigError, ConfigError]
    assert "used already holds other.parquet, and" in str(errors[0])
    assert "name another folder" in str(errors[1])


def test_a_disk_that_fills_up_is_told_with_the_file_and_leaves_none(tmp_path, predict, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    [error] = predict(writers(tmp_path / "out"))
    assert "predictions-00000-of-00001.parquet cannot be written: No space left" in str(error)
    assert names(tmp_path / "out") == []


def test_batches_return_the_same_columns(tmp_path, predict):
    columns = iter([{"x": torch.zeros(3)}, {"x": torch.zeros(3, dtype=torch.int64)}])
    [error] = predict(writers(tmp_path / "out"), step=lambda _: next(columns))
    assert isinstance(error, ConfigError)
    assert "'x' (int64), and for the batches before 'x' (float)" in str(error)


def test_a_trainer_writes_what_it_predicts_and_only_once(tmp_path, make_data):
    [writer] = writers(tmp_path / "out")
    trainer = quiet_trainer(tmp_path, [writer], limit_predict_batches=2)
    assert trainer.predict(EvaluatedWeight(), make_data(), return_predictions=False) is None
    table = pq.read_table(tmp_path / "out").to_pydict()
    assert table["__id__"] == SAMPLES[:6]
    assert table["prediction"] == list(range(6))
    with pytest.raises(ShardError, match=r"already holds predictions-"):
        trainer.predict(EvaluatedWeight(), make_data(), return_predictions=False)


# --- which predictions become rows, and their types


BATCH = {
    "__key__": ["a", "b", "bytes\udcff"],
    "__id__": torch.tensor([[0, 1], [0, 2], [5, 0]]),
    "__weight__": torch.tensor([1.0, 0.0, 1.0]),
}


def test_a_tensor_has_a_row_for_each_sample_that_counts():
    given = torch.arange(6, dtype=torch.float64).reshape(3, 2)
    assert rows_of(given, BATCH).to_pydict() == {
        "__key__": ["a", "bytes\\udcff"],
        "__id__": [[0, 1], [5, 0]],
        "prediction": [[0, 1], [4, 5]],
    }


def test_a_dict_has_a_column_for_each_entry():
    given = {
        "class": torch.tensor([1, 2, 3]),
        "caption": ("x", "y", "z"),
        "score": [0.5, 1, True],
        "loss": [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)],
        "boxes": [torch.zeros(0, 4), torch.zeros(0, 4), torch.ones(1, 4)],
        "tokens": [[1, 2], [3], [4]],
        "mask": np.ones((3, 2, 2), bool),
    }
    table = rows_of(given, BATCH)
    types = dict(zip(table.schema.names, map(str, table.schema.types), strict=True))
    lists = "large_list<item: large_list<item: {}>>"
    assert types == {
        "__key__": "large_string",
        "__id__": "large_list<item: int64>",
        "class": "int64",
        "caption": "large_string",
        "score": "double",
        "loss": "float",
        "boxes": lists.format("float"),
        "tokens": "large_list<item: int64>",
        "mask": lists.format("bool"),
    }
    assert table["caption"].to_pylist() == ["x", "z"]
    assert table["loss"].to_pylist() == [1, 3]
    assert table["boxes"].to_pylist() == [[], [[1] * 4]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_short_floating_point_numbers_become_float32(dtype):
    given = torch.tensor([1.0, 2.0, -0.5], requires_grad=True).to(dtype)
    # a trainer of this precision has all of a batch in it
    batch = BATCH | {"__weight__": BATCH["__weight__"].to(dtype)}
    column = rows_of(given, batch)["prediction"]
    assert (str(column.type), column.to_pylist()) == ("float", [1, -0.5])


@pytest.mark.parametrize(
    ("prediction", "message"),
    [
        (None, "predict_step returned None for a batch of 3 samples; .* wants a tensor with one"),
        ({"x": torch.zeros(4)}, r"returned a tensor of shape \(4,\) for 'x' for a batch of 3"),
        ({"x": ["a", "b"]}, r"returned \['a', 'b'\] for 'x' for a batch of 3"),
        ({"x": {"y": 1}}, "returned {'y': 1} for 'x'"),
        ({"x": ["a", 1, 2]}, "values for 'x' that no file holds .*: return real numbers"),
        ({"x": [[1], [[2]], [3]]}, r"'x' that no file holds .int64\[\] and int64\[\]\[\]"),
        ({"x": torch.zeros(3, dtype=torch.complex64)}, "no file holds .complex64."),
        ({"x": np.zeros(3, np.longdouble)}, "no file holds"),
        ({"__key__": ["a", "b", "c"]}, "entry '__key__'.* written from the batch"),
        ({1: torch.zeros(3)}, "entry 1; names are texts"),
    ],
)
def test_anything_else_is_refused_with_what_is_wanted(prediction, message):
    with pytest.raises(ConfigError, match=message):
        rows_of(prediction, BATCH)


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
        rows_of(torch.zeros(3), batch)
