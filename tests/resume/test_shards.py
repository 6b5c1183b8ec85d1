"""The real thing: shards on disk, worker processes, another batch size and other workers."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from toy import SeenSamples, Snapshots, StopHereError, resumed

from lightning_shards import LoaderConfig, SplitConfig


class SeenRows(SeenSamples):
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


@pytest.mark.parametrize(
    ("counts", "split"),
    [([5, 9, 6], {}), ([9, 14, 9], {"exclude": {"hash_of": "key", "of": 3, "parts": [0]}})],
    ids=["all", "left"],
)
def test_a_chain_of_batch_sizes_and_workers_gives_each_sample_the_same_joint_draws(
    pack_shards, make_module, tmp_path, counts, split
):
    urls = pack_shards(counts)

    def fit(batch_size, num_workers, callbacks=(), checkpoint=None):
        data = make_module(
            SplitConfig(urls, "shuffled", shuffle_run=2, shuffle_block=8, **split),
            fields={"image": "png", "label": "cls"},
            decode={"image": "gray"},
            sample_transforms=[crop_alike, draw_globally],
            seed=11,
            batch_size=batch_size,
            num_workers=num_workers,
            # workers that are not forked import all of this file
            loader=LoaderConfig(multiprocessing_context="fork"),
        )
        options = {"callbacks": callbacks, "max_epochs": 2}
        return resumed(tmp_path, checkpoint, data, SeenRows(), **options).seen

    whole, checkpoint = fit(1, 0), None
    assert len({repr(drawn) for *_, drawn in whole}) == len(whole) == 40
    for batch_size, num_workers, step in ((4, 0, 1), (3, 2, 4), (2, 1, 2)):
        stop = Snapshots(tmp_path / str(batch_size), stop=("on_train_batch_end", step))
        with pytest.raises(StopHereError):
            fit(batch_size, num_workers, [stop], checkpoint)
        (checkpoint,) = stop.saved.values()
    assert fit(1, 0, (), checkpoint) == whole
