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
    CONTEXTS,
    STEPS,
    STOPS,
    THREADS,
    WORKERS_OF_STOPS,
    drawn_globally,
    jitter_globally,
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


def crop_alike(sample, rng):
    """Two fields by one draw, of another size for each sample, and a field of its own."""
    top = int(rng.integers(4))
    image = sample["image"].repeat(1, 2, 1)[:, top : top + 4]
    return sample | {"image": image, "mask": image[0, 0] + top, "length": top}


def crop_rows(sample, rng):
    """The same, without the label, which then travels by columns."""
    return crop_alike(sample, rng)


crop_rows.takes_fields = ("image",)


JOINT = {"joint": [crop_rows], "joint, globally": [crop_alike, drawn_globally]}


def decoded_plainly(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.asarray(Image.open(io.BytesIO(data)).convert("L")).copy())[None]


class Scaled:
    """A decoder with a setting."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, data: bytes) -> int:
        return self.factor * int(data)


DECODERS = {"image": decoded_plainly, "label": Scaled(5)}


def side_by_side(samples):
    """A batch of its own shape: the images in one row, and a list of small tensors."""
    return {
        "row": torch.cat([sample["image"] for sample in samples], dim=-1),
        "labels": torch.cat([sample["label"] for sample in samples]),
        "weights": [sample["__weight__"] for sample in samples],
    }


def crop_rows_ragged(sample, rng):
    """As many rows as are drawn, and boxes, of which there may be none."""
    rows = int(rng.integers(1, 4))
    boxes = np.full((int(rng.integers(3)), 4), rng.random(), np.float32)
    return sample | {"image": sample["image"][:, :rows, : 5 - rows], "boxes": boxes}


COLLATES = {
    "own": ({"collate_fn": side_by_side}, {"row", "labels", "weights"}),
    "PadCollate": (
        {
            "collate_fn": PadCollate(["image", "boxes"], to_multiple=2),
            "joint": [crop_rows_ragged],
        },
        {"image", "image_length", "boxes", "boxes_length", "label"},
    ),
}
"""Settings, and what stands in batches then."""


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
    [
        ("fork", 3, "resampled"),
        ("fork", 8, "shuffled"),
        ("forkserver", 3, "shuffled"),
        ("spawn", 1, "resampled"),
    ],
)
def test_processes_give_the_bytes_of_the_trainers_thread(
    make_loader, expected, context, num_workers, sampling
):
    assert take(make_loader(num_workers, context, sampling), STEPS) == expected[sampling]


POOLS_OF_THREADS = {
    "8 threads": (8, {"pool": "threads"}),
    "2 threads in each of 2 processes": (2, {"threads_per_worker": 2}),
}


@pytest.mark.parametrize(("num_workers", "pool"), POOLS_OF_THREADS.values(), ids=POOLS_OF_THREADS)
def test_threads_give_the_bytes_of_the_trainers_thread(make_loader, num_workers, pool):
    expected = take(make_loader(label=jitter_label), STEPS)
    assert take(make_loader(num_workers, label=jitter_label, **pool), STEPS) == expected


@pytest.mark.parametrize(("settings", "names"), COLLATES.values(), ids=COLLATES)
def test_a_collate_fn_gives_the_same_bytes_from_processes_threads_and_after_resumes(
    make_loader, settings, names
):
    make = partial(make_loader, label=jitter_label, **settings)
    expected = take(make(), STEPS)
    assert len({repr(batch) for batch in expected}) == STEPS
    assert {name for name, *_ in expected[0]} >= names
    require_same_from_pools(make, expected)
    require_same_after_stops(make, expected, WORKERS_OF_STOPS)


def test_processes_resumed_at_any_step_by_other_processes_give_the_same_bytes(
    make_loader, expected
):
    """One worker more or less for each resume, from the first step to the one after the epoch."""
    workers = [1 + stop % 3 for stop in STOPS]
    require_same_after_stops(make_loader, expected["shuffled"], workers, 3)


@pytest.mark.parametrize("joint", JOINT.values(), ids=JOINT)
def test_joint_transforms_give_the_same_bytes_from_processes_threads_and_after_resumes(
    make_loader, joint
):
    label = jitter_label if joint == [crop_rows] else jitter_globally
    make = partial(make_loader, label=label, joint=joint)
    expected = take(make(), STEPS)
    assert len({repr(batch) for batch in expected}) == STEPS
    # threads cannot seed what all of them draw from
    pools = THREADS if label is jitter_label else ()
    require_same_from_pools(make, expected, CONTEXTS, pools)
    require_same_after_stops(make, expected, WORKERS_OF_STOPS)


def test_own_decoders_give_the_same_bytes_from_processes_threads_and_after_resumes(make_loader):
    make = partial(make_loader, label=jitter_label, decode=DECODERS)
    expected = take(make(), STEPS)
    assert len({repr(batch) for batch in expected}) == STEPS
    assert expected != take(make_loader(label=jitter_label), STEPS)
    require_same_from_pools(make, expected, ())
    require_same_after_stops(make, expected, WORKERS_OF_STOPS)
