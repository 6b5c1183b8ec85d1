"""The randomness of transforms: one random stream per sample, whichever worker makes it.

This is the only module that touches the global generators of Python, numpy and torch, because
users' transforms may draw from them. That of torch is touched only where torch is loaded.

albumentations draws from generators in its objects, which no global seed reaches. Objects with its
method `set_random_seed` are seeded here. Any other generator can only be noticed: a transform is
run twice on the first sample, and if the results differ, a warning names the field. A `collate_fn`
is watched in the same way, and may draw from no generator at all.
"""

import copy
import logging
import random
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from operator import ne
from types import ModuleType
from typing import Any, Final, cast

import numpy as np

from lightning_shards.errors import ConfigError
from lightning_shards.plan.draws import Purpose
from lightning_shards.samples.tensors import is_tensor, torch_if_loaded


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


_DEEPEST: Final = 5
"""How deep objects in objects are searched, as in a `partial` of a method of an instance."""

_MOST_PARTS: Final = 100
"""Longer collections are taken for data and not searched."""

_NOTHING_IN = (type, ModuleType, str, bytes, int, float, type(None), np.ndarray)

_COMPARED = (str, bytes, int, float, complex, np.ndarray, np.generic)

_log = logging.getLogger(__name__)


def seeded_objects(transform: object) -> list[Any]:
    """The outermost objects in a transform that have `set_random_seed`, itself included.

    They are searched in attributes, collections, closures, bound methods and `partial`.
    """
    seeded: list[Any] = []
    seen: list[object] = []  # keeps the objects alive, so that no id is used again

    def look(value: object, depth: int) -> None:
        if depth > _DEEPEST or isinstance(value, _NOTHING_IN) or any(value is s for s in seen):
            return
        seen.append(value)
        if callable(getattr(value, "set_random_seed", None)):
            seeded.append(value)
            return
        for part in _parts_of(value):
            look(part, depth + 1)

    look(transform, 0)
    return seeded


def _parts_of(value: object) -> Iterator[object]:
    if isinstance(value, dict | list | tuple | set):
        parts = cast("Any", value)
        if len(parts) <= _MOST_PARTS:
            yield from parts.values() if isinstance(value, dict) else parts
        return
    whole: Any = value
    if isinstance(value, partial):
        yield from (whole.func, *whole.args, *whole.keywords.values())
    for cell in getattr(whole, "__closure__", None) or ():
        with suppress(ValueError):  # the cell is empty
            yield cell.cell_contents
    yield getattr(whole, "__self__", None)
    yield from getattr(whole, "__dict__", {}).values()


@contextmanager
def outside_workers() -> Generator[None]:
    """Make torch report no worker process: in one, albumentations would add torch's seed."""
    state: Any = sys.modules.get("torch.utils.data._utils.worker")
    if state is None:  # so nothing can ask it, and whoever loads it is called again
        yield
        return
    info, state._worker_info = state._worker_info, None  # noqa: SLF001 there is no other way
    try:
        yield
    finally:
        state._worker_info = info  # noqa: SLF001


def _look_like(wrapper: Any, function: object) -> None:
    """Give a wrapper the name and the wishes of the function in it."""
    wrapper.__name__ = _name_of(function)
    wrapper.takes_bytes = getattr(function, "takes_bytes", False)
    wrapper.takes_arrays = getattr(function, "takes_arrays", False)
    wrapper.takes_fields = getattr(function, "takes_fields", None)


def _name_of(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


class RepeatedTransform:
    """Makes its first value twice with the same seeds; a warning names it if they differ.

    The caller restores the global generators.

    Args:
        called: What the warning calls it.
        transform: Has no parameter `rng`, and does not say that it is deterministic.
    """

    def __init__(self, called: str, transform: Callable[[Any], Any]) -> None:
        self._called, self._transform, self._is_compared = called, transform, False
        self.__wrapped__ = transform  # so that errors know its library
        _look_like(self, transform)

    def __call__(self, value: Any) -> Any:
        """The result of the transform."""
        if self._is_compared:
            return self._transform(value)
        had_torch = torch_if_loaded() is not None
        given = value
        with suppress(Exception):  # a value that cannot be copied will hardly be changed
            given = copy.deepcopy(value)
        made = self._made(given)
        if not had_torch and torch_if_loaded():
            return made  # without its seed; the sample is made again, and its values are compared
        self._is_compared = True
        kept = made
        with suppress(Exception):  # a reused buffer would be compared with itself
            kept = copy.deepcopy(made)
        try:
            is_same = are_same(kept, self._made(value))
        except Exception:  # noqa: BLE001 the first run raised nothing
            is_same = False
        if not is_same:
            _log.warning(
                "%s made two values of one sample with the same seed, so "
                "that no run can be repeated: it has a random generator of its own, or keeps "
                "something between samples; give it a parameter `rng`, which gets a "
                "numpy.random.Generator for each sample, or a method `set_random_seed`",
                self._called,
            )
        return made

    def _made(self, value: Any) -> Any:
        for generator in seeded_objects(self._transform):
            generator.set_random_seed(0)
        SampleSeeds(0, 0).seed_globals(0)
        return self._transform(value)


class WatchedTransform:
    """Refuses a transform or decoder that moves the global generators, which are not seeded for it.

    Only its first call is watched: what it draws now and then may escape.

    Args:
        called: What the error calls it.
        transform: Has a parameter `rng`, or says that it is deterministic.
    """

    def __init__(self, called: str, transform: Callable[..., Any]) -> None:
        self._called, self._is_watched = called, False
        self.__wrapped__ = transform  # so that its parameters are seen
        self.deterministic = getattr(transform, "deterministic", False)
        _look_like(self, transform)

    def __call__(self, value: Any, **settings: Any) -> Any:
        """The result of the transform.

        Raises:
            ConfigError: It moved a global generator.
        """
        if self._is_watched:
            return self.__wrapped__(value, **settings)
        had_torch, before = torch_if_loaded() is not None, globals_state()
        made = self.__wrapped__(value, **settings)
        if not had_torch and torch_if_loaded():
            return made  # the sample is made again
        if globals_state() != before:
            keyed = "the parameter `rng`" if settings else "the attribute `deterministic`"
            raise ConfigError(
                f"{self._called} has {keyed}, and it drew from the random generators of the whole "
                "process, or seeded them: they are not seeded for it, so that no run could be "
                f"repeated; draw from `rng` alone, or leave {keyed} out, and they are seeded for "
                "each sample"
            )
        self._is_watched = True
        return made


class WatchedCollateFn:
    """Makes its first batch twice more on the side; a warning says if it draws random numbers.

    Nothing is seeded for a `collate_fn`, so what it draws would depend on the worker.

    Args:
        collate_fn: Makes a batch of a list of samples; it does not say that it is deterministic.
    """

    def __init__(self, collate_fn: Callable[[list[Any]], Any]) -> None:
        self._collate_fn, self._is_watched = collate_fn, False
        self.__name__ = _name_of(collate_fn)
        self.takes_arrays = getattr(collate_fn, "takes_arrays", False)

    def __call__(self, samples: list[Any]) -> Any:
        """The batch of these samples."""
        if not self._is_watched:
            self._is_watched = True
            problem = ""
            with suppress(Exception), preserved_globals():  # what fails is told by the call below
                problem = self._problem([*samples, *samples])  # two, which it may mix
            if problem:
                _log.warning(
                    "collate_fn, which is %s, %s, so that no run can be repeated: draw in a "
                    "transform with a parameter `rng`, or on the device; or give it the attribute "
                    "`deterministic = True` if its batches do not depend on what it draws",
                    self.__name__,
                    problem,
                )
        return self._collate_fn(samples)

    def _problem(self, samples: list[Any]) -> str:
        SampleSeeds(0, 0).seed_globals(0)
        before = globals_state()
        made = copy.deepcopy(self._collate_fn(copy.deepcopy(samples)))
        after = globals_state()
        if any(old != new for old, new in zip(before, after, strict=False)):
            return "drew random numbers from the generators of the whole process"
        if not are_same(made, self._collate_fn(copy.deepcopy(samples))):
            return "made two batches of the same samples: it has a random generator of its own"
        return ""


def are_same(first: Any, second: Any) -> bool:
    """Whether two values hold the same arrays, tensors, numbers and texts; NaN equals itself.

    They are looked for in collections and in attributes. Any other object counts as the same.
    """
    if type(first) is not type(second):
        return False
    if isinstance(first, Mapping):
        items = cast("Mapping[Any, Any]", first), cast("Mapping[Any, Any]", second)
        return are_same(*(list(mapping.items()) for mapping in items))
    if isinstance(first, list | tuple):
        parts = cast("list[Any]", first)
        return len(parts) == len(second) and all(map(are_same, parts, second))
    if is_tensor(first) or isinstance(first, _COMPARED):
        return _are_equal(first, second)
    return first is second or are_same(*(getattr(each, "__dict__", ()) for each in (first, second)))


def _are_equal(first: Any, second: Any) -> bool:
    if not is_tensor(first):
        first, second = np.asarray(first), np.asarray(second)
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    try:
        are_nan = ne(first, first) & ne(second, second)
        return bool(((first == second) | are_nan).all())
    except (TypeError, ValueError, RuntimeError):  # a sparse tensor, for instance
        return True
