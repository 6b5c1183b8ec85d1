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


def _globals_state() -> list[object]:
    """The states of the global generators, to be compared; torch's only if it is loaded."""
    torch, (name, keys, *rest) = torch_if_loaded(), cast("Any", np.random.get_state())  # noqa: NPY002
    states: list[object] = [random.getstate(), name, keys.tobytes(), rest]
    return [*states, torch.get_rng_state().numpy().tobytes()] if torch else states


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


def watched(called: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A transform or a decoder, watched on a first value for draws that cannot be repeated.

    Those of this package are left as they are.
    """
    is_ours = type(function).__module__.startswith("lightning_shards.")
    return function if is_ours else Watched(called, function)


def watched_collate_fn(function: Callable[..., Any]) -> Callable[..., Any]:
    """A `collate_fn`, watched on a first batch: nothing is seeded for it, and it may not draw."""
    if _is_deterministic(function):
        return function
    called = f"collate_fn, which is {callable_name(function)},"
    return Watched(called, function, makes_batches=True)


def callable_name(function: object) -> str:
    """Its name, or that of its class."""
    return getattr(function, "__name__", type(function).__name__)


class Watched:
    """A callable of the user's, which makes its first value twice on the side, to be compared.

    A `collate_fn` does so of twice the samples, which it may mix.

    Args:
        called: What messages call it.
        function: The callable.
        makes_batches: Whether it is a `collate_fn`.
    """

    def __init__(
        self, called: str, function: Callable[..., Any], *, makes_batches: bool = False
    ) -> None:
        self._called, self._makes_batches, self._is_watched = called, makes_batches, False
        self.__wrapped__, self.__name__ = function, callable_name(function)

    def __getattr__(self, name: str) -> Any:
        """What the function wants, as by `takes_arrays`."""
        return getattr(object.__getattribute__(self, "__wrapped__"), name)

    def __call__(self, value: Any, **settings: Any) -> Any:
        """The result of the function.

        Raises:
            ConfigError: It drew from a generator that is not seeded for it.
        """
        if not self._is_watched:
            self._watch([*value, *value] if self._makes_batches else value, settings)
            self._is_watched = True
        return self.__wrapped__(value, **settings)

    def _watch(self, value: Any, settings: dict[str, Any]) -> None:
        draws = differs = False
        with suppress(Exception), preserved_globals():  # what fails is told by the call itself
            made, draws = self._made(value, settings)
            kept = copy.deepcopy(made)  # a reused buffer would be compared with itself
            differs = not are_same(kept, self._made(value, settings)[0])
        if self._makes_batches and (draws or differs):
            _log.warning("%s %s%s", self._called, _DREW if draws else _TWO_BATCHES, _NO_DRAWS)
        elif draws and not may_draw_from_globals(self.__wrapped__):
            keyed = "the parameter `rng`" if settings else "the attribute `deterministic`"
            raise ConfigError(
                f"{self._called} has {keyed}, and it drew from the random generators of the whole "
                "process, or seeded them: they are not seeded for it, so that no run could be "
                f"repeated; draw from `rng` alone, or leave {keyed} out, and they are seeded for "
                "each sample"
            )
        elif differs:
            _log.warning(_DIFFERS, self._called)

    def _made(self, value: Any, settings: dict[str, Any]) -> tuple[Any, bool]:
        """The result for a copy, and whether global generators were drawn from or seeded."""
        for generator in () if self._makes_batches else own_generators(self.__wrapped__):
            generator.set_random_seed(0)
        SampleSeeds(0, 0).seed_globals(0)
        before = _globals_state()
        made = self.__wrapped__(copy.deepcopy(value), **copy.deepcopy(settings))
        return made, _globals_state() != before


_DIFFERS = (
    "%s made two values of one sample with the same seeds, so that no run can be repeated: it has "
    "a random generator of its own, or keeps something between samples; give it a parameter `rng`, "
    "which gets a numpy.random.Generator for each sample, or a method `set_random_seed`"
)

_DREW = "drew random numbers from the generators of the whole process"
_TWO_BATCHES = "made two batches of the same samples: it has a random generator of its own"
_NO_DRAWS = (
    ", so that no run can be repeated: draw in a transform with a parameter `rng`, or on the "
    "device; or give it the attribute `deterministic = True` if its batches do not depend on what "
    "it draws"
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
