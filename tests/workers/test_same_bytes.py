"""Batches are equal byte for byte from real processes, however many, and after any stop.

tests/readers/test_indexed.py compares the shares of workers without processes, and two workers
under each start method.
"""

import io
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_shards import PadCollate
from tests.workers.same_bytes import (
    STEPS,
    STOPS,
    WORKERS_OF_STOPS,
    jitter_label,
    require_same_after_stops,
    require_same_from_pools,
    take,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ddp,
    pytest.mark.timeout(600),  # eight processes on a loaded core
]


def crop_rows(sample, rng):
    """Two fields by one draw, of another size for each sample; the label travels by columns."""
    top = int(rng.integers(4))
    image = sample["image"].repeat(1, 2, 1)[:, top : top + 4]
    return sample | {"image": image, "mask": image[0, 0] + top, "length": top}


crop_rows.takes_fields = ("image",)


def decoded_plainly(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.asarray(Image.open(io.BytesIO(data)).convert("L")).copy())[None]


class Scaled:
    """A decoder with a setting."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, data: bytes) -> int:
        return self.factor * int(data)


def crop_rows_ragged(sample, rng):
    """As many rows as are drawn, and boxes, of which there may be none."""
    rows = int(rng.integers(1, 4))
    boxes = np.full((int(rng.integers(3)), 4), rng.random(), np.float32)
    return sample | {"image": sample["image"][:, :rows, : 5 - rows], "boxes": boxes}


SETTINGS = {
    "PadCollate": {
        "collate_fn": PadCollate(["image", "boxes"], to_multiple=2),
        "joint": [crop_rows_ragged],
    },
    "joint transforms": {"joint": [crop_rows]},
    "decoders": {"decode": {"image": decoded_plainly, "label": Scaled(5)}},
}


@pytest.fixture(scope="module")
def expected(make_loader):
    """Two epochs by sampling, made in the trainer's own thread."""
    return {
        sampling: take(make_loader(sampling=sampling), STEPS)
        for sampling in ("shuffled", "resampled")
    }


def test_two_epochs_differ_in_their_bytes(expected):
    for batches in expected.values():
        assert len({repr(batch) for batch in batches}) == STEPS


@pytest.mark.parametrize(
    ("context", "num_workers", "sampling"),
    [("fork", 8, "shuffled"), ("forkserver", 3, "shuffled"), ("spawn", 1, "resampled")],
)
def test_processes_give_the_bytes_of_the_trainers_thread(
    make_loader, expected, context, num_workers, sampling
):
    assert take(make_loader(num_workers, context, sampling), STEPS) == expected[sampling]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_bytes_are_the_same_from_processes_threads_and_after_resumes(make_loader, name):
    make = partial(make_loader, label=jitter_label, **SETTINGS[name])
    expected = take(make(), STEPS)
    assert len({repr(batch) for batch in expected}) == STEPS
    require_same_from_pools(make, expected)
    require_same_after_stops(make, expected, WORKERS_OF_STOPS)


def test_processes_resumed_at_any_step_by_other_processes_give_the_same_bytes(
    make_loader, expected
):
    """One worker more or less for each resume, from the first step to the one after the epoch."""
    workers = [1 + stop % 3 for stop in STOPS]
    require_same_after_stops(make_loader, expected["shuffled"], workers, 3)
