"""The real thing: shards on disk, worker processes, another batch size and other workers."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy import SeenSamples, Snapshots, StopHereError, make_trainer

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig


class Seen(SeenSamples):
    """Keeps the ids that it was trained on with its weights."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen += [[self.current_epoch, *each] for each in batch["__id__"].tolist()]
        return self.layer(batch["label"][:, None].float()).mean()


class SeenRows(Seen):
    """Keeps whole samples: what the joint transforms drew for each."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        for row, sample_id in enumerate(batch["__id__"].tolist()):
            drawn = [batch[name][row].tolist() for name in ("image", "mask", "label", "drawn")]
            self.seen.append([self.current_epoch, sample_id, drawn])
        return self.layer(batch["drawn"][:, None].float()).mean()


def crop_alike(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Two fields cut by one draw, and the draw."""
    top = int(rng.integers(4))
    row = sample["image"][:, top]
    return sample | {"image": row, "mask": row.float() + float(rng.random()), "label": top}


def draw_globally(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"drawn": float(np.random.random()) + random.random()}  # noqa: NPY002


THIRD = {"hash_of": "key", "of": 3, "parts": [0]}

JOINT = {
    "fields": {"image": "png", "label": "cls"},
    "decode": {"image": "gray"},
    "sample_transforms": [crop_alike, draw_globally],
    "seed": 11,
    "loader": LoaderConfig(multiprocessing_context="fork"),  # others import all of this file
}


def module_of(
    folder: Path,
    urls: list[str],
    batch_size: int,
    num_workers: int,
    settings: dict[str, Any],
    split: dict[str, Any] | None = None,
) -> ShardDataModule:
    return ShardDataModule(
        SplitConfig(*(urls, "shuffled"), shuffle_run=2, shuffle_block=8, **(split or {})),
        batch_size=batch_size,
        num_workers=num_workers,
        **{"loader": LoaderConfig(cache_dir=str(folder / "cache"))} | settings,
    )


def fit(folder: Path, urls: list[str], batch_size: int, num_workers: int, **more: Any) -> list[Any]:
    settings = more.pop("settings", {"fields": {"label": "cls"}})
    split = more.pop("split", {})
    data = module_of(folder, urls, batch_size, num_workers, settings, split)
    model = SeenRows() if settings is JOINT else Seen()
    trainer = make_trainer(folder, more.pop("callbacks", ()), max_epochs=2)
    trainer.fit(model, data, **more)
    return model.seen


@pytest.mark.parametrize(
    ("counts", "split"), [([5, 9, 6], {}), ([9, 14, 9], {"exclude": THIRD})], ids=["all", "left"]
)
def test_a_chain_of_batch_sizes_and_workers_gives_each_sample_the_same_joint_draws(
    pack_shards, tmp_path, counts, split
):
    urls = pack_shards(counts)
    more = {"settings": JOINT, "split": split}
    whole = fit(tmp_path, urls, batch_size=1, num_workers=0, **more)
    assert len({repr(drawn) for *_, drawn in whole}) == len(whole) == 40
    checkpoint = None
    for batch_size, num_workers, hook in (
        (4, 0, ("on_train_batch_end", 1)),
        (3, 2, ("on_train_batch_end", 4)),
        (2, 1, ("on_train_batch_end", 2)),
    ):
        stop = Snapshots(tmp_path / str(batch_size), stop=hook)
        with pytest.raises(StopHereError):
            fit(
                tmp_path,
                urls,
                batch_size,
                num_workers,
                callbacks=[stop],
                ckpt_path=checkpoint,
                **more,
            )
        (checkpoint,) = stop.saved.values()
    assert fit(tmp_path, urls, 1, 0, ckpt_path=checkpoint, **more) == whole


WORLDS = (
    [(2, 2, 2), (3, 1, 2), (1, 4, 1), (3, 2, 1)],
    [(1, 4, 3), (2, 3, 1), (1, 1, 2), (2, 2, 1)],
)
"""Chains of segments: batch size, world size and steps."""


def _steps_of(loaders: Sequence[Any], state: Any, steps: int) -> list[Any]:
    """The rows of so many steps of all ranks, which are loaders of one process, from a state on."""
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    ranks = [iter(loader) for loader in loaders]
    return [row for _ in range(steps) for batches in ranks for row in _rows([next(batches)])]


def _rows_of_chain(
    make: Callable[[int], ShardDataModule], chain: Sequence[tuple[int, int, int]]
) -> list[Any]:
    """The rows of all segments of a chain, each resumed from the state that the one before left."""
    state, rows = None, list[Any]()
    for batch_size, world_size, steps in chain:
        loaders = [
            make(batch_size).loader("train", rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        rows += _steps_of(loaders, state, steps)
        state = loaders[0].state_dict()
    return rows


LEFT_OUT = {
    "all": ([5, 9, 6, 4], {}),
    "excluded": ([9, 0, 15, 11, 6], {"exclude": THIRD}),
    "kept": ([17, 23, 20, 24], {"keep": THIRD}),
}
"""Samples of shards, of which at least the 24 of a chain are left by a filter."""


@pytest.mark.parametrize(("counts", "split"), LEFT_OUT.values(), ids=LEFT_OUT)
@pytest.mark.parametrize("chain", WORLDS)
def test_chains_of_worlds_give_each_sample_the_same_joint_draws(
    pack_shards, tmp_path, counts, split, chain
):
    urls = pack_shards(counts)

    def make(batch_size):
        return module_of(tmp_path, urls, batch_size, 0, JOINT, split)

    whole = list(_rows(make(1).loader("train")))
    assert 24 <= len({repr(row) for row in whole}) == len(whole)
    assert (len(whole) < sum(counts)) == bool(split)
    rows = _rows_of_chain(make, chain)
    assert rows == whole[: len(rows)]
    assert len(rows) == sum(map(prod, chain))


def _rows(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        for row, key in enumerate(batch["__key__"]):
            yield key, [batch[name][row].tolist() for name in ("image", "mask", "label", "drawn")]
