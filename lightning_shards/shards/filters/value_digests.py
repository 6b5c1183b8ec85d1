"""Digests of the values that a function reads, equal in all processes as far as that can be.

Pickles are not: the order of a set of texts differs from one process to the next.
"""

import copyreg
import hashlib
import os
import time
from collections.abc import Collection, Iterable, Iterator
from functools import cache, cached_property
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, Final, cast

import numpy as np

_STARTED: Final = time.time_ns()
"""Tells this process from an earlier one with its number."""

_PLAIN: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Types of which `repr` tells all."""

_SETS: Final = frozenset({set, frozenset})
_DESCRIPTORS: Final = (GetSetDescriptorType, MemberDescriptorType)
_WRAPPERS: Final = (staticmethod, classmethod, property, cached_property, type(cache(abs)))
"""What holds functions of a class, or keeps what a function gave."""


def only_here(what: str) -> str:
    """A text about a thing that no other process can recognise."""
    return f"{what} in process {os.getpid()} since {_STARTED}"


class ValueDigests:
    """Digests of values; the code of some modules is followed to what it reads.

    Args:
        modules: The names of these modules; code of other modules is told by its name.

    Attributes:
        met: The code of the functions of these modules that were met, as it runs in this process.
    """

    def __init__(self, modules: Collection[str]) -> None:
        self.met: set[CodeType] = set()
        self._modules = frozenset(modules)
        self._open: dict[int, object] = {}  # values that are being looked at
        self._code: dict[str, Any] = {}  # functions and classes of the modules, as they are met

    def digest_with_code(self, value: object) -> bytes:
        """The digest of a value, and of all that its code reads."""
        whole, read = self._digest_of("", value), dict[str, bytes]()
        while names := sorted(self._code.keys() - read.keys()):
            for name in names:
                read[name] = _digest(name, self._read_by(self._code[name]))
        return _digest("all", [whole, *(read[name] for name in sorted(read))])

    def digest(self, value: Any) -> bytes:
        """The digest of a value with all that it holds.

        Raises:
            Exception: What its own `__reduce__` raises, as where it cannot be pickled.
        """
        kind = cast("type[Any]", type(value))
        if kind in _PLAIN:
            return _digest(kind.__name__, [repr(value).encode("utf-8", "surrogatepass")])
        if id(value) in self._open:
            return _digest("again", [kind.__name__.encode()])
        self._open[id(value)] = value
        made = _digest(kind.__name__, self._parts(value, kind))
        del self._open[id(value)]
        return made

    def _parts(self, value: Any, kind: type) -> Iterable[bytes]:
        if isinstance(value, FunctionType | type):
            return self._parts_of_code(value)
        if isinstance(value, ModuleType):
            return [value.__name__.encode()]
        if kind in _SETS:
            return sorted(map(self.digest, value))
        if kind is np.ndarray and not value.dtype.hasobject:
            return [repr((value.dtype.descr, value.shape)).encode(), value.tobytes()]
        if kind is dict:
            value = [part for item in value.items() for part in item]
        elif kind not in {list, tuple}:
            value = _functions_in(value) or _as_pickled(value, kind)
        return map(self.digest, value)

    def _parts_of_code(self, code: "FunctionType | type[Any]") -> Iterator[bytes]:
        """Of a function or a class: its name, and what a function of the modules holds."""
        line = code.__code__.co_firstlineno if isinstance(code, FunctionType) else 0
        name = f"{code.__module__}.{code.__qualname__}:{line}"  # the line tells lambdas apart
        yield name.encode()
        if code.__module__ in self._modules:
            self._code[name] = code
            if isinstance(code, FunctionType):
                if self._is_of_modules(code) and not code.__code__.co_filename.startswith("<"):
                    self.met.add(code.__code__)  # others were generated, as by `dataclass`
                if code.__dict__:
                    yield self._digest_of("attributes", code.__dict__)
                yield self.digest(code.__defaults__)
                yield self.digest(code.__kwdefaults__)
                for cell in code.__closure__ or ():
                    yield self._digest_of("cell", _content_of(cell))

    def _read_by(self, code: "FunctionType | type[Any]") -> Iterator[bytes]:
        """The globals that a function names, or the bases and attributes of a class."""
        if not isinstance(code, FunctionType):
            yield from map(self.digest, code.__bases__)
            attributes = dict(vars(code))
            for name in sorted(attributes):
                attribute: object = attributes[name]
                is_code = isinstance(attribute, (FunctionType, *_WRAPPERS))
                is_given = name.startswith(("__", "_abc_")) or isinstance(attribute, _DESCRIPTORS)
                if is_code or not is_given:  # by Python itself
                    yield self._digest_of(name, attributes[name])
        elif self._is_of_modules(code):
            names = {name for each in code_in(code.__code__) for name in each.co_names}
            for name in sorted(code.__globals__.keys() & names):
                value = code.__globals__[name]
                if not isinstance(value, ModuleType):
                    yield self._digest_of(name, value)

    def _is_of_modules(self, function: FunctionType) -> bool:
        """Whether its code is of one of the modules; `functools.wraps` names another one."""
        return function.__globals__.get("__name__") in self._modules

    def _digest_of(self, name: str, value: object) -> bytes:
        """Of a value by its name; one that has no digest is another one in each process."""
        before = dict(self._open)
        try:
            return _digest(name, [self.digest(value)])
        except Exception:  # noqa: BLE001 whatever its `__reduce__` raises
            self._open = before
            return _digest(name, [only_here(name).encode()])


def _digest(kind: str, parts: Iterable[bytes]) -> bytes:
    made = hashlib.sha256(kind.encode())
    for part in parts:
        made.update(len(part).to_bytes(8, "big"))
        made.update(part)
    return made.digest()


def _functions_in(value: Any) -> list[Any]:
    if not isinstance(value, _WRAPPERS):
        return []
    names = ("__wrapped__", "__func__", "fget", "fset", "fdel", "func")
    return [getattr(cast("Any", value), name, None) for name in names]


def _as_pickled(value: Any, kind: type) -> list[Any]:
    """What `pickle` would write of a value: what makes it, of what, and its state."""
    reduce: Any = copyreg.dispatch_table.get(kind)
    reduced: Any = reduce(value) if reduce else value.__reduce_ex__(4)
    if isinstance(reduced, str):  # a name in its module
        return [reduced]
    return [list(cast("Any", part)) if isinstance(part, Iterator) else part for part in reduced]


def _content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def code_in(code: CodeType) -> Iterator[CodeType]:
    """Some code, and that of the functions and classes inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_in(constant)
