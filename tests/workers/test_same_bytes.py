"""Batches are equal byte for byte from real processes, however many, and after any stop.

tests/readers/test_indexed.py compares the shares of workers without processes, and two workers
under each start method.
"""

from itertools import chain, islice

import numpy as np
import pytest
import torch

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ddp,
    pytest.mark.timeout(600),  # eight processes on a loaded core
    # torch's word to machines with fewer cores than workers
]

COUNTS = [5, 0, 9, 3, 12, 1]  # 30 samples
EPOCHS = 2
STEPS = 8 * EPOCHS


def jitter(image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return image + torch.from_numpy(rng.random(tuple(image.shape)))


def jitter_globally(label: int) -> torch.Tensor:
    return label + torch.rand(3) + float(np.random.random())  # noqa: NPY002


def jitter_label(label: int, rng: np.random.Generator) -> torch.Tensor:
    return label + torch.from_numpy(rng.random(3))


def side_by_side(samples):
    """A batch of its own shape: the images in one row, and a list of small tensors."""
    return {
        "row": torch.cat([sample["image"] for sample in samples], dim=-1),
        "labels": torch.cat([sample["label"] for sample in samples]),
        "weights": [sample["__weight__"] for sample in samples],
    }


@pytest.fixture(scope="module")
def make_loader(tmp_path_factory, pack_into):
    """Makes loaders of rank 1 of 2, over the same shards; 0 workers are the trainer's thread."""
    folder = tmp_path_factory.mktemp("bytes")
    urls = pack_into(folder, COUNTS)

    def make(num_workers=0, context="fork", sampling="shuffled", label=jitter_globally,
             collate_fn=None, **pool):  # fmt: skip
        module = ShardDataModule(
            train=SplitConfig(
                urls,
                sampling=sampling,
                reader="indexed",
                remainder="pad",
                shuffle_run=2,
                shuffle_block=8,
            ),
            fields={"image": "png", "label": "cls"},
            decode={"image": "gray"},
            transforms={"image": jitter, "label": label},
            collate_fn=collate_fn,
            batch_size=2,
            num_workers=num_workers,
            seed=7,
            loader=LoaderConfig(
                multiprocessing_context=context, cache_dir=str(folder / "cache"), **pool
            ),
        )
        return module.loader("train", rank=1, world_size=2)

    return make


def take(loader, num_batches):
    """The next batches, over the ends of epochs, as bytes with what is needed to read them."""
    epochs = chain.from_iterable(iter(loader) for _ in range(EPOCHS + 1))
    try:
        return [as_bytes(batch) for batch in islice(epochs, num_batches)]
    finally:
        loader.close()


def as_bytes(batch):
    return [
        (name, str(value.dtype), tuple(value.shape), value.numpy().tobytes())
        if isinstance(value, torch.Tensor)
        else (name, value)
        for name, value in batch.items()
    ]


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
        ("fork", 1, "shuffled"),
        ("fork", 2, "shuffled"),
        ("fork", 3, "shuffled"),
        ("fork", 3, "resampled"),
        ("fork", 8, "shuffled"),
        ("fork", 8, "resampled"),
        ("forkserver", 3, "shuffled"),
    ],
)
def test_processes_give_the_bytes_of_the_trainers_thread(
    make_loader, expected, context, num_workers, sampling
):
    assert take(make_loader(num_workers, context, sampling), STEPS) == expected[sampling]


THREADS = {
    "1 thread": (1, {"pool": "threads"}),
    "3 threads": (3, {"pool": "threads"}),
    "8 threads": (8, {"pool": "threads"}),
    "2 threads in each of 2 processes": (2, {"threads_per_worker": 2}),
}


@pytest.mark.parametrize(("num_workers", "pool"), THREADS.values(), ids=THREADS)
def test_threads_give_the_bytes_of_the_trainers_thread(make_loader, num_workers, pool):
    expected = take(make_loader(label=jitter_label), STEPS)
    assert take(make_loader(num_workers, label=jitter_label, **pool), STEPS) == expected


@pytest.mark.parametrize(
    ("num_workers", "pool"),
    [(3, {}), (2, {"context": "forkserver"}), (3, {"pool": "threads"})],
    ids=["fork", "forkserver", "threads"],
)
def test_a_collate_fn_gives_the_bytes_of_the_trainers_thread(make_loader, num_workers, pool):
    own = {"label": jitter_label, "collate_fn": side_by_side}
    expected = take(make_loader(**own), STEPS)
    assert [name for name, *_ in expected[0]][:2] == ["__key__", "row"]
    assert take(make_loader(num_workers, **own, **pool), STEPS) == expected
    state = make_loader().state_dict() | {"samples": 12}
    loader = make_loader(num_workers, **own, **pool)
    loader.load_state_dict(state)
    assert take(loader, 3) == expected[3:6]


def test_processes_resumed_at_any_step_by_other_processes_give_the_same_bytes(
    make_loader, expected
):
    """One worker more or less for each resume, from the first step to the one after the epoch."""
    state = make_loader().state_dict()
    for stop in range(STEPS // EPOCHS + 1):
        loader = make_loader(num_workers=1 + stop % 3)
        loader.load_state_dict(state)
        assert take(loader, 3) == expected["shuffled"][stop : stop + 3], stop
        loader.load_state_dict(state)
        take(loader, 1)
        state = loader.state_dict()
