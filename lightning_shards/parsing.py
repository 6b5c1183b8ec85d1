"""The door to jsonargparse: objects from plain values, and its errors in one line.

It imports what is named and runs nothing else: there is no expression in a configuration.
"""

import json
import re
import warnings
from argparse import ArgumentError
from collections.abc import Callable, Iterator, Mapping
from pkgutil import resolve_name
from typing import Any, TypeVar, cast

from jsonargparse import ArgumentParser, Namespace

from lightning_shards.errors import ConfigError, ShardError

_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)

_KEY = re.compile(r'Parser key "([^"]+)":\s*')
_UNION = re.compile(r"Subtypes: \[(.*?)\]\s*Errors:.*Given value: (.*)", re.DOTALL)
_EXPECTED = re.compile(r"Expected an? (.*)\. Got value: (.*)", re.DOTALL)
"""How jsonargparse 4.53 words its errors; what does not match is passed on as it is."""

_FAILURES = (ArgumentError, ImportError, AttributeError, TypeError, ValueError)
"""What jsonargparse, an import and a constructor raise for values that do not fit."""


def build(
    make: Callable[..., _T],
    values: Mapping[str, Any],
    section: str,
    unchecked: Mapping[str, Any] | None = None,
) -> _T:
    """Call a class or a function with values that are checked against its annotations.

    Args:
        make: a class or a function.
        values: its arguments in plain types; ``class_path`` and ``init_args`` make an object.
        section: how errors call these values.
        unchecked: more arguments, for a `**kwargs` whose names jsonargparse cannot find out.

    Raises:
        ConfigError: a key that it does not take, one that is missing, or a value of another type.
        Exception: whatever `make` itself raises.
    """
    parser = _parser_of(make, section)
    arguments: dict[str, Any] = {}
    problem: Exception | None = None
    try:
        parsed = parser.parse_object({section: dict(values)}, env=False)
    except _FAILURES as error:
        problem = ConfigError(plain_message(error))
    else:
        try:
            made = _instantiated(parser, parsed)
            arguments = cast("dict[str, Any]", vars(made.get(section, Namespace())))
        except ValueError as error:  # jsonargparse wraps those of the members of a union
            problem = cause_of(error, ShardError) or error
    if problem is not None:  # outside: the parser's own errors show all values, with the URLs
        raise problem
    return make(**(arguments | dict(unchecked or {})))


def json_schema(make: Callable[..., object], section: str) -> dict[str, Any]:
    """The JSON schema of a document that has the arguments of `make` in one section."""
    return json.loads(_parser_of(make, section).get_completion_script("jsonschema"))


def _parser_of(make: Callable[..., object], section: str) -> Any:
    parser = cast("Any", ArgumentParser(exit_on_error=False, allow_abbrev=False))
    is_class = isinstance(make, type)
    add = parser.add_class_arguments if is_class else parser.add_function_arguments
    add(make, section, fail_untyped=False, **({"instantiate": False} if is_class else {}))
    return parser


def _instantiated(parser: Any, parsed: Any) -> Any:
    """The objects of what was parsed."""
    instantiate = getattr(parser, "instantiate", None) or parser.instantiate_classes  # before 4.49
    with warnings.catch_warnings():
        # in `dict[str, Any]`; jsonargparse 5 leaves that to who gets it, and `load_callable` can
        for message in ("Instantiating a subclass spec", "By default only one Jsonargparse"):
            warnings.filterwarnings("ignore", rf"\s*{message}", DeprecationWarning)
        return instantiate(parsed)


def load_callable(name: str, value: object) -> Callable[..., Any]:
    """What to call: a callable itself, its import path, or ``class_path`` and ``init_args``.

    A path to a class whose instances can be called makes one without arguments.

    Args:
        name: how errors call it.
        value: one of the three.

    Raises:
        ConfigError: it names nothing that can be called, or its arguments do not fit.
    """
    try:
        found = _load(value)
    except _FAILURES as error:
        raise ConfigError(f"{name} is {value!r}, which cannot be loaded: {error}") from error
    if not callable(found):
        raise ConfigError(
            f"{name} must be a callable, its import path like my_module.my_function, or class_path "
            f"and init_args, got {value!r}"
        )
    return found


def load_callables(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The same for each value; `name` says what they are, as in ``the transform of``."""
    return {key: load_callable(f"{name} {key!r}", value) for key, value in values.items()}


def plain_message(error: BaseException) -> str:
    """The message of an error in one line: ours where one is behind it, else key, rule and value.

    jsonargparse lists all members of a union, level by level; here the innermost rule stays, with
    the whole key: ``data.train.batch_size: expected int or None, got many``.
    """
    keys: list[str] = []
    text = str(error)
    if ours := cause_of(error, ShardError):
        return str(ours)
    for each in _causes(error):
        match = _KEY.match(str(each))
        if match:
            text = str(each)[match.end() :]
            if [match[1]] != keys[-1:]:
                keys.append(match[1])
        elif type(each).__module__.startswith(("argparse", "jsonargparse")):
            text = str(each)
    prefix = f"{'.'.join(keys)}: " if keys else ""
    return prefix + " ".join(_reworded(text).split())


def cause_of(error: BaseException, kind: type[_E]) -> _E | None:
    """The outermost error of this kind: itself, or one that it wraps; None if there is none."""
    return next((each for each in _causes(error) if isinstance(each, kind)), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those behind it, outermost first."""
    while error is not None:
        yield error
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or context


def _load(value: object) -> object:
    if isinstance(value, str):
        found = resolve_name(value)
        return found() if _makes_callables(found) else found
    if isinstance(value, Namespace):
        return _load(value.as_dict())
    if isinstance(value, Mapping) and "class_path" in value:
        spec = cast("Mapping[str, Any]", value)
        if unknown := sorted(spec.keys() - {"class_path", "init_args"}):
            raise ConfigError(f"it takes class_path and init_args, not {unknown}")
        return build(resolve_name(spec["class_path"]), spec.get("init_args") or {}, "init_args")
    return cast("object", value)


def _makes_callables(found: object) -> bool:
    """Whether it is a class with a `__call__` of its own: not `float`, which converts values."""
    return isinstance(found, type) and any("__call__" in vars(base) for base in found.__mro__)


def _reworded(text: str) -> str:
    """``expected int or None, got many``, where that is all it says."""
    match = _UNION.search(text) or _EXPECTED.fullmatch(text.strip())
    if match is None:
        return text
    kinds = re.sub(r"<class '(?:[\w.]+\.)?(\w+)'>", r"\1", match[1]).replace("typing.", "")
    # at the commas that stand in no bracket
    alternatives = re.split(r", (?![^\[]*\])", kinds.replace("NoneType", "None"))
    return f"expected {' or '.join(alternatives)}, got {match[2]}"
