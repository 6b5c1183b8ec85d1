"""Fits with a joined column resume where the table is the same, and say so where it is not."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from toy import SeenSamples, Snapshots, StopHereError, make_trainer

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig, StateError

pytestmark = pytest.mark.filterwarnings(  # lightning/pytorch/utilities/_pytree.py, torch 2.13
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
)

COUNTS = [5, 9, 6]


class Seen(SeenSamples):
    """Keeps the numbers that it was trained on with its weights."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        assert batch["number"].tolist() == list(map(int, batch["__key__"]))
        self.seen += batch["number"].tolist()
        return self.layer(batch["number"][:, None].float()).mean()


def fit(
    folder: Path, urls: list[str], table: Path, batch_size: int, num_workers: int, **more: Any
) -> list[Any]:
    data = ShardDataModule(
        SplitConfig(
            urls, sampling="shuffled", join={"number": {"table": str(table), "missing": "raise"}}
        ),
        fields={"label": "cls"},
        batch_size=batch_size,
        num_workers=num_workers,
        loader=LoaderConfig(cache_dir=str(folder / "cache")),
    )
    model = Seen()
    trainer = make_trainer(folder, more.pop("callbacks", ()), max_epochs=2)
    trainer.fit(model, data, **more)
    return model.seen


def write(path: Path, offset: int = 0) -> Path:
    numbers = range(sum(COUNTS))
    columns = {
        "__key__": [f"{number:06d}" for number in numbers],
        "number": [number + offset for number in numbers],
    }
    parquet.write_table(pa.table(columns), path)
    return path


def test_a_fit_resumes_with_a_moved_table_and_not_with_a_changed_one(pack_shards, tmp_path):
    urls, table = pack_shards(COUNTS), write(tmp_path / "numbers.parquet")
    whole = fit(tmp_path, urls, table, batch_size=1, num_workers=0)
    stop = Snapshots(tmp_path, stop=("on_train_batch_end", 6))  # 8 of 20 in the second epoch
    with pytest.raises(StopHereError):
        fit(tmp_path, urls, table, 4, 0, callbacks=[stop])
    (checkpoint,) = stop.saved.values()
    changed = write(tmp_path / "changed.parquet", offset=1)
    with pytest.raises(StateError, match=r"table of join 'number' has changed since .*put the old"):
        fit(tmp_path, urls, changed, 3, 0, ckpt_path=checkpoint)
    (tmp_path / "elsewhere").mkdir()
    moved = table.rename(tmp_path / "elsewhere" / "others.parquet")
    assert fit(tmp_path, urls, moved, 3, 2, ckpt_path=checkpoint) == whole
