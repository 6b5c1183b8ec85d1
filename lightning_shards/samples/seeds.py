"""The randomness of transforms: one random stream per sample, whichever worker makes it.

This is the only module that touches the global generators of Python, numpy and torch, because
users' transforms may draw from them. That of torch is touched only where torch is loaded.
"""

import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from lightning_shards.plan.draws import Purpose
from lightning_shards.samples.loaded_torch import torch_if_loaded


class SampleSeeds:
    """Random streams keyed by (seed, epoch, start of the stream, position).

    Setting the counter of one Philox generator (Salmon et al., "Parallel random numbers: as easy as
    1, 2, 3", SC11) costs about a microsecond; a new Generator costs eight times that. All calls
    therefore return the same generator object, which is valid until the next call.
    """

    def __init__(self, seed: int, epoch: int, start: int = 0) -> None:
        self._counter = np.array([0, 0, start, Purpose.TRANSFORMS], dtype=np.uint64)
        self._philox = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64))
        self._generator = np.random.Generator(self._philox)
        self._state = self._philox.state  # taken before any draw, so no buffered words are in it

    def generator(self, position: int) -> np.random.Generator:
        """The generator of one sample, at the beginning of its stream."""
        self._counter[1] = position
        self._state["state"]["counter"] = self._counter
        self._philox.state = self._state
        return self._generator

    def words(self, position: int, count: int) -> list[int]:
        """Seeds of 32 bits for generators that belong to one sample."""
        return self.generator(position).integers(2**32, size=count).tolist()

    def seed_globals(self, position: int) -> None:
        """Seed Python's, numpy's and torch's global generators for one sample."""
        word = int(self.generator(position).integers(2**63))
        random.seed(word)
        np.random.seed(word & 0xFFFF_FFFF)  # noqa: NPY002 users' transforms draw from it
        torch = torch_if_loaded()
        if torch is not None:
            # torch.manual_seed would also visit all accelerators: 97 us instead of 1.
            torch.default_generator.manual_seed(word)


@contextmanager
def preserved_globals() -> Generator[None]:
    """Restore the global generators afterwards, so that loading never disturbs the model."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch = torch_if_loaded()
    tensors = torch.get_rng_state() if torch else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(tensors)


def globals_state() -> list[object]:
    """The states of the global generators, to be compared; torch's is last, and only if loaded."""
    name, keys, *rest = cast("Any", np.random.get_state())  # noqa: NPY002
    states: list[object] = [random.getstate(), (name, keys.tobytes(), *rest)]
    torch = torch_if_loaded()
    return states if torch is None else [*states, torch.get_rng_state().numpy().tobytes()]


def python_generator(seeds: SampleSeeds, position: int) -> random.Random:
    """A `random.Random` for webdataset's shuffle, which needs one."""
    return random.Random(int(seeds.generator(position).integers(2**63)))  # noqa: S311 not a secret


_WORKER_SEED = 883_951_781_600_517_636
"""Seed of the first worker process; torch's DataLoader draws it from a generator of its own."""


def worker_seed(worker: int) -> int:
    """The seed of this worker process, which torch reports in `get_worker_info()`."""
    return _WORKER_SEED + worker


def begin_globals(worker: int) -> None:
    """Seed Python's and numpy's global generators as a DataLoader would in this worker process.

    Transforms find them seeded for each sample; the user's own stages of a stream find them so.
    """
    random.seed(worker_seed(worker))
    entropy = [worker, _WORKER_SEED & 0xFFFF_FFFF, _WORKER_SEED >> 32, 0]
    np.random.seed(np.random.SeedSequence(entropy).generate_state(4))  # noqa: NPY002
