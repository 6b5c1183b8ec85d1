"""Values in values: what a batch holds is changed wherever in it that is.

Tensors leave a message so, and come back into it.
"""

import copy
import dataclasses
import inspect
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from copyreg import dispatch_table
from dataclasses import is_dataclass
from functools import cache
from types import MemberDescriptorType
from typing import Any, Final, cast

_MAKING = ("__new__", "__getnewargs__", "__reduce__", "__reduce_ex__")
"""What a named tuple is made by, also where it is unpickled."""

_OF_OBJECTS = ("__new__", "__reduce__", "__reduce_ex__")
_OF_NO_OBJECT = ("__getnewargs__", "__getnewargs_ex__")
"""What a class has, and has not, that leaves its making and pickling to Python."""


_DEEPEST: Final = 64
"""Values that lie deeper in others are pickled as they are: a walk to them would use up the stack.
Batches have tensors at five or six levels, and JSON may have a thousand."""


_NOTHING_IN = frozenset([str, int, float, bool, bytes, type(None)])
"""What need not be asked for."""


def mapped(value: Any, kinds: tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """The value with all that has exactly one of these types changed.

    They are looked for in lists, tuples, dicts, `UserDict` and dataclasses, also in those of one
    another. What is of another class (a subclass of `list`, of `dict` or of a named tuple, or a
    mapping of the user's) is kept as it is, because its class alone knows how it is made. What is
    in it twice is changed once, and a value may hold itself.

    (`tree_map_only` of torch takes ten times as long for a batch, because it looks at each key.)
    """
    kind = cast("Any", type(value))
    if kind in kinds:
        return change(value)
    return _Copies(kinds, change).of(value, 0) if _may_hold(kind) else value


class _Copies:
    """The copies of all that one value holds, made as `copy.deepcopy` does."""

    def __init__(self, kinds: tuple[type, ...], change: Callable[[Any], Any]) -> None:
        self._kinds, self._change = kinds, change
        self._made: dict[int, Any] = {}  # by the id of what the value holds, and so keeps alive

    def of(self, value: Any, depth: int) -> Any:
        kind = cast("Any", type(value))
        is_sought = kind in self._kinds
        if not is_sought and not _may_hold(kind):
            return value
        made = self._made.get(id(value))
        if made is not None:
            return made
        if is_sought:
            made = self._change(value)
        elif depth == _DEEPEST:
            return value
        elif is_listing(kind):
            made = self._of_listing(kind, value, depth + 1)
        else:
            made = self._of_object(kind, value, depth + 1)
        return self._made.setdefault(id(value), made)  # a tuple that holds itself is made below

    def _of_listing(self, kind: Any, values: list[Any] | tuple[Any, ...], depth: int) -> Any:
        if not any(each in self._kinds or _may_hold(each) for each in set(map(type, values))):
            return values  # a list of keys or texts
        if kind is list:
            copies: list[Any] = []
            self._made[id(values)] = copies
            copies += [self.of(each, depth) for each in values]
            return copies
        parts = [self.of(each, depth) for each in values]
        return tuple(parts) if kind is tuple else kind._make(parts)

    def _of_object(self, kind: Any, value: Any, depth: int) -> Any:
        """The copy of a dict, of a `UserDict` or of a dataclass."""
        clone = self._made[id(value)] = value.copy() if kind is dict else copy.copy(value)
        if dict in kind.__mro__:
            for name, each in value.items():
                if type(each) not in _NOTHING_IN:
                    clone[name] = self.of(each, depth)
        elif UserDict in kind.__mro__:  # its class may look at what is set
            vars(clone)["data"] = self.of(vars(value)["data"], depth)
        else:
            for name in _part_names(kind):
                if hasattr(value, name):
                    changed = self.of(getattr(value, name), depth)
                    object.__setattr__(clone, name, changed)  # it may be frozen
        return clone


@cache
def _may_hold(kind: Any) -> bool:
    return kind is dict or is_listing(kind) or _has_parts(kind)


@cache
def is_listing(kind: Any) -> bool:
    """Whether it is `list`, `tuple` or a named tuple that can be made of any values.

    That is one without further attributes, whose class leaves its making and pickling to Python.
    """
    if kind in (list, tuple):
        return True
    if tuple not in kind.__mro__ or not hasattr(kind, "_make") or kind.__dictoffset__:
        return False
    named = next(base for base in kind.__mro__ if "_fields" in vars(base))
    return all(getattr(kind, name) is getattr(named, name) for name in _MAKING)


@cache
def _has_parts(kind: Any) -> bool:
    """Whether a copy of it, in which its parts are changed, shares nothing with it.

    That is so for dataclasses that leave copying and pickling to Python, and for `UserDict`, as
    transformers' BatchEncoding is one. Any other mapping may share its data with its copy.
    """
    if issubclass(kind, dict):
        return kind in (OrderedDict, defaultdict)
    if any(getattr(kind, name) is not getattr(object, name) for name in _OF_OBJECTS):
        return False
    if any(hasattr(kind, name) for name in _OF_NO_OBJECT) or kind in dispatch_table:
        return False
    if issubclass(kind, UserDict):
        return _own(kind, "__copy__") is _own(UserDict, "__copy__")
    has_state = any(map(_is_written, (_own(kind, "__getstate__"), _own(kind, "__setstate__"))))
    return is_dataclass(kind) and not hasattr(kind, "__copy__") and not has_state


def _own(kind: Any, name: str) -> Any:
    return getattr(kind, name, None)


def _is_written(method: Any) -> bool:
    """Whether a method of a dataclass is of the user's; those with slots are given some."""
    is_given = getattr(method, "__module__", None) == dataclasses.__name__
    return not (method is None or is_given or method is _own(object, "__getstate__"))


@cache
def _part_names(kind: Any) -> list[str]:
    """The fields of a dataclass that are plain attributes: to set another one runs its class."""
    names = [field.name for field in dataclasses.fields(kind)]
    owned = {name: inspect.getattr_static(kind, name, None) for name in names}
    slot = MemberDescriptorType
    return [n for n in names if isinstance(owned[n], slot) or not hasattr(owned[n], "__set__")]
