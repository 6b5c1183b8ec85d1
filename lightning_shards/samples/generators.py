"""The randomness of transforms: one random stream per sample, whichever worker makes it.

This is the only module that touches the global generators of Python, numpy and torch, because
users' transforms may draw from them. That of torch is touched only where torch is loaded.

albumentations draws from generators in its objects, which no global seed reaches. Objects with its
method `set_random_seed` are seeded here. Any other generator can only be noticed: a transform makes
its first value twice on the side, and if the results differ, a warning names the field. A
`collate_fn` is watched in the same way, and may draw from no generator at all.
"""

import copy
import inspect
import logging
import random
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from gc import get_referents
from operator import ne
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Final, cast

import numpy as np

from lightning_shards.plan.draws import Purpose
from lightning_shards.samples.tensors import is_tensor, load_torch, torch_if_loaded


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

    def seed_globals(self, position: int) -> None:
        """Seed Python's, numpy's and torch's global generators for one sample."""
        word = int(self.generator(position).integers(2**63))
        random.seed(word)
        np.random.seed(word & 0xFFFF_FFFF)  # noqa: NPY002 users' transforms draw from it
        torch = torch_if_loaded()
        if torch is not None:
            # torch.manual_seed would also visit all accelerators: 97 us instead of 1.
            torch.default_generator.manual_seed(word)


def _globals_state() -> tuple[Any, ...]:
    """The states of Python's, numpy's and torch's global generators; of torch only if loaded."""
    torch = torch_if_loaded()
    return random.getstate(), np.random.get_state(), torch and torch.get_rng_state()  # noqa: NPY002


@contextmanager
def preserved_globals(*, are_drawn: bool = True) -> Generator[None]:
    """Restore the global generators afterwards, so that loading never disturbs the model.

    Nothing is done where nothing draws from them.
    """
    if not are_drawn:
        yield
        return
    python, legacy, tensors = _globals_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        if tensors is not None:
            load_torch().set_rng_state(tensors)


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


_DEEPEST: Final = 8
"""How deep objects in objects are searched, as in a `partial` of a method of an instance."""

_MOST_PARTS: Final = 200
"""Longer collections are taken for data and not searched."""

_NOTHING_IN = (type, ModuleType, str, bytes, int, float, type(None), np.ndarray)

_COMPARED = (str, bytes, int, float, complex, np.ndarray, np.generic)

_log = logging.getLogger(__name__)


def own_generators(function: Callable[..., Any]) -> list[Any]:
    """The outermost objects in a transform that have `set_random_seed`, itself included.

    They are searched in all that it holds: attributes, collections, closures, arguments. One that
    says that it is deterministic has none.
    """
    seeded: list[Any] = []
    seen: dict[int, object] = {}  # keeps the objects alive, so that no id is used again

    def look(value: object, depth: int) -> None:
        if depth > _DEEPEST or isinstance(value, _NOTHING_IN) or id(value) in seen:
            return
        seen[id(value)] = value
        if callable(getattr(value, "set_random_seed", None)):
            seeded.append(value)
            return
        # a function holds all names of its module, too
        is_function = isinstance(value, FunctionType)
        parts = get_referents(
            *((*(value.__closure__ or ()), value.__dict__) if is_function else (value,))
        )
        for part in parts if len(parts) <= _MOST_PARTS else ():
            look(part, depth + 1)

    if not _is_deterministic(function):
        look(function, 0)
    return seeded


@contextmanager
def outside_workers() -> Generator[None]:
    """Make torch report no worker process: in one, albumentations would add torch's seed."""
    state: Any = sys.modules.get("torch.utils.data._utils.worker", SimpleNamespace())
    info, state._worker_info = getattr(state, "_worker_info", None), None  # noqa: SLF001 there is no other way
    try:
        yield
    finally:
        state._worker_info = info  # noqa: SLF001


def takes_rng(function: Callable[..., Any]) -> bool:
    """Whether a transform has a parameter named `rng`."""
    try:
        return "rng" in inspect.signature(function).parameters
    except ValueError:  # a builtin without a signature
        return False


def may_draw_from_globals(function: Callable[..., Any]) -> bool:
    """Whether a transform or a decoder may draw from generators that all threads share.

    It has neither a parameter `rng` nor an attribute ``deterministic = True``, or it has generators
    of its own.
    """
    is_keyed = takes_rng(function) or _is_deterministic(function)
    return not is_keyed or bool(own_generators(function))


def _is_deterministic(function: object) -> bool:
    return getattr(function, "deterministic", False) is True


def watched(
    called: str, function: Callable[..., Any], *, is_seeded: bool = True
) -> Callable[..., Any]:
    """A callable of the user's, watched on a first value for draws that cannot be repeated.

    Transforms of this package are left as they are.

    Args:
        called: What the warning calls it.
        function: The callable.
        is_seeded: Whether generators are seeded for it, as they are for transforms.
    """
    is_ours = type(function).__module__.startswith("lightning_shards.")
    return function if is_ours else Watched(called, function, is_seeded=is_seeded)


def callable_name(function: object) -> str:
    """Its name, or that of its class."""
    return getattr(function, "__name__", type(function).__name__)


class Watched:
    """A callable that makes its first value twice on the side, to be compared; see `watched`."""

    def __init__(self, called: str, function: Callable[..., Any], *, is_seeded: bool) -> None:
        self._called, self._is_seeded, self._is_watched = called, is_seeded, False
        self.__wrapped__, self.__name__ = function, callable_name(function)

    def __getattr__(self, name: str) -> Any:
        """What the function wants, as by `takes_arrays`."""
        return getattr(object.__getattribute__(self, "__wrapped__"), name)

    def __call__(self, value: Any, **settings: Any) -> Any:
        """The result of the function."""
        if not self._is_watched:
            self._is_watched = True
            with suppress(Exception), preserved_globals():  # the call itself tells what fails
                if not are_same(self._made(value, settings), self._made(value, settings)):
                    _log.warning(_DIFFERS, self._called)
        return self.__wrapped__(value, **settings)

    def _made(self, value: Any, settings: dict[str, Any]) -> Any:
        """The result for a copy, and the state of the global generators after it.

        Two results differ by what the function drew from generators that are not seeded for it.
        """
        if self._is_seeded:
            for generator in own_generators(self.__wrapped__):
                generator.set_random_seed(0)
            if may_draw_from_globals(self.__wrapped__):
                SampleSeeds(0, 0).seed_globals(0)
        elif isinstance(value, list):  # the samples of a batch, which a collate_fn may mix
            value = 2 * cast("list[Any]", value)
        made = self.__wrapped__(copy.deepcopy(value), **copy.deepcopy(settings))
        return copy.deepcopy(made), _globals_state()  # a reused buffer would equal itself


_DIFFERS = (
    "%s made two results of the same values, so that no run can be repeated: it has a random "
    "generator of its own, keeps something from call to call, or draws from the generators of the "
    "whole process where these are not seeded for it; draw in a transform with a parameter `rng`, "
    "which gets a numpy.random.Generator for each sample, or on the device; give a transform a "
    "method `set_random_seed`, or, to a collate_fn whose batches do not depend on what it draws, "
    "`deterministic = True`"
)


def are_same(first: Any, second: Any) -> bool:
    """Whether two values hold the same arrays, tensors, numbers and texts; NaN equals itself.

    They are looked for in mappings, lists and tuples. Any other object counts as the same.
    """
    if type(first) is not type(second):
        return False
    if isinstance(first, Mapping):
        items = cast("Mapping[Any, Any]", first), cast("Mapping[Any, Any]", second)
        return are_same(*(list(mapping.items()) for mapping in items))
    if isinstance(first, list | tuple):
        parts = cast("list[Any]", first)
        return len(parts) == len(second) and all(map(are_same, parts, second))
    if not is_tensor(first):
        if not isinstance(first, _COMPARED):
            return True
        first, second = np.asarray(first), np.asarray(second)
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    return bool(((first == second) | ne(first, first) & ne(second, second)).all())
