"""The bytes of batches from loaders of many pools, and what transforms draw on the way."""

from itertools import chain, islice

import numpy as np
import torch

COUNTS = [5, 0, 9, 3, 12, 1]  # 30 samples
EPOCHS = 2
STEPS = 8 * EPOCHS
STOPS = range(STEPS // EPOCHS + 1)
"""From the first step to the one after the first epoch."""

WORKERS_OF_STOPS = [2 * (stop % 5 == 3) for stop in STOPS]
"""Most loaders have none, since starting them takes longest."""

CONTEXTS = (("fork", 3), ("forkserver", 2))
"""Start methods, each with a number of workers; `spawn` sends what `forkserver` sends."""

THREADS = ({"pool": "threads"}, {"threads_per_worker": 2})
"""Pools that have threads."""


def jitter(image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return image + torch.from_numpy(rng.random(tuple(image.shape)))


def jitter_globally(label: int) -> torch.Tensor:
    return label + torch.rand(3) + float(np.random.random())  # noqa: NPY002


def jitter_label(label: int, rng: np.random.Generator) -> torch.Tensor:
    return label + torch.from_numpy(rng.random(3))


def as_bytes(batch):
    return [
        (name, str(value.dtype), tuple(value.shape), value.numpy().tobytes())
        if isinstance(value, torch.Tensor)
        else (name, value)
        for name, value in batch.items()
    ]


def take(loader, num_batches, as_bytes=as_bytes):
    """The next batches, over the ends of epochs, as bytes with what is needed to read them."""
    epochs = chain.from_iterable(iter(loader) for _ in range(EPOCHS + 1))
    try:
        return [as_bytes(batch) for batch in islice(epochs, num_batches)]
    finally:
        loader.close()


def require_same_from_pools(make, expected, contexts=CONTEXTS, pools=THREADS, taken=take):
    """All these workers give the batches that the trainer's own thread makes."""
    for context, num_workers in contexts:
        assert taken(make(num_workers, context), len(expected)) == expected, context
    for pool in pools:
        assert taken(make(2, **pool), len(expected)) == expected, pool


def require_same_after_stops(make, expected, workers, num_batches=2, taken=take):
    """Loaders of so many workers, one after each step, give the batches from there on."""
    state = make().state_dict()
    for stop, num_workers in enumerate(workers):
        loader = make(num_workers)
        loader.load_state_dict(state)
        assert taken(loader, num_batches) == expected[stop : stop + num_batches], stop
        loader.load_state_dict(state)
        taken(loader, 1)
        state = loader.state_dict()
