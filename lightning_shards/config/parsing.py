"""The door to jsonargparse: makes objects from plain values, and shortens errors to one line.

It imports the classes and functions that are named and runs nothing else: a configuration contains
no expressions.
"""

import json
import re
import warnings
from argparse import ArgumentError
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pkgutil import resolve_name
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser, Namespace

from lightning_shards.errors import ConfigError, ShardError

_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)

_KEY = re.compile(r'Parser key "([^"]+)":\s*')
_UNION = re.compile(r"Subtypes: \[(.*?)\]\s*Errors:.*Given value: (.*)", re.DOTALL)
_EXPECTED = re.compile(r"Expected an? (.*)\. Got value: (.*)", re.DOTALL)
_NESTED = re.compile(
    r"\s*Does not .*\s+Subtypes: \[dict\[[\s\S]*Given value: NestedArg\(key='([\w-]+)"
)
_OF_OPTION = re.compile(r"NestedArg\(key='([^']*)', val=(.*)\)")
_OF_KEY = re.compile(r"Namespace\((\w+)='([^']*)'\)")
_UNKNOWN = (
    re.compile(r"Group '([\w.]+)' does not accept option '([\w.]+)'"),
    re.compile(r"(\S+(?:: mix\.\S+)?): Option '([\w.]+)' is not accepted"),
    re.compile(r"unrecognized arguments: --(\w+)\.([\w.]+)"),
    re.compile(r"Subcommand '\w+' does not accept option '(\w+)\.([\w.]+)'"),
)
"""The wording of errors in jsonargparse 4.53; other messages are passed on as they are."""

_FAILURES = (ArgumentError, ImportError, AttributeError, TypeError, ValueError)
"""Errors that jsonargparse, imports and constructors raise for values that do not fit."""


def build(
    make: Callable[..., _T],
    values: Mapping[str, Any],
    section: str,
    unchecked: Mapping[str, Any] | None = None,
) -> _T:
    """Call a class or a function with values that are checked against its annotations.

    Args:
        make: A class or a function.
        values: Its arguments in plain types; ``class_path`` and ``init_args`` make an object.
        section: Name of these values in errors.
        unchecked: More arguments, for `**kwargs` whose names jsonargparse cannot find out.

    Raises:
        ConfigError: A key is unknown or missing, or a value has the wrong type.
        Exception: Any error that `make` itself raises.
    """
    key = re.sub(r"\W", "_", section)  # jsonargparse takes no other letters
    parser = _parser_of(make, key)
    arguments: dict[str, Any] = {}
    problem: Exception | None = None
    try:
        parsed = parser.parse_object({key: _copied(values)}, env=False)
    except _FAILURES as error:
        message = plain_message(error)
        message += did_you_mean(message, known_keys(parser))
        problem = ConfigError(message.replace(key, section, 1))
    else:
        try:
            made = _instantiated(parser, parsed)
            arguments = cast("dict[str, Any]", vars(made.get(key, Namespace())))
        except ValueError as error:  # jsonargparse wraps errors of the members of a union
            problem = cause_of(error, ShardError) or error
    if problem is not None:  # raised outside `except`: the parser's error shows values with URLs
        raise problem
    return make(**(arguments | dict(unchecked or {})))


def _copied(value: Any) -> Any:
    """The same dicts and lists anew, because the parser writes into those that it is given."""
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_copied(each) for each in cast("list[Any]", value)]
    return value


def json_schema(make: Callable[..., object], section: str) -> dict[str, Any]:
    """The JSON schema of a document with the arguments of `make` in one section."""
    return json.loads(_parser_of(make, section).get_completion_script("jsonschema"))


def known_keys(parser: Any) -> Iterator[str]:
    """The keys of a parser and of its subcommands, with those of dataclasses that may be None."""
    for action in parser._actions:  # noqa: SLF001 argparse has no public list
        yield str(action.dest)
        yield from _keys_below(str(action.dest), getattr(action, "_typehint", None))
        choices: object = action.choices
        if isinstance(choices, Mapping):
            for subparser in cast("Mapping[str, object]", choices).values():
                yield from known_keys(subparser)


def _keys_below(key: str, hint: object) -> Iterator[str]:
    """The keys of the dataclasses that a value may be, or that its entries may be."""
    for kind in get_args(hint):
        if not is_dataclass(kind):
            yield from _keys_below(f"{key}.*" if get_origin(kind) is dict else key, kind)
            continue
        hints = get_type_hints(kind)
        for setting in fields(kind):
            yield f"{key}.{setting.name}"
            yield from _keys_below(f"{key}.{setting.name}", hints[setting.name])


def _dataclass_of_entries(kind: object) -> Any:
    """`X` of ``dict[str, X]`` if it is a dataclass, otherwise None."""
    entry = get_args(kind)[1:] if get_origin(kind) is dict else ()
    return entry[0] if entry and is_dataclass(entry[0]) else None


def checked_entries(action: Any, check: Callable[[Any], Any], value: object) -> Any:
    """What a parser's check makes of a value; errors about a dict of dataclasses name its entry.

    Raises:
        TypeError: An entry of such a dict is wrong.
        Exception: Any error of `check` about another value.
    """
    problem: Exception
    try:
        return check(value)
    except _FAILURES as first:
        problem = first
        kinds = map(_dataclass_of_entries, get_args(getattr(action, "_typehint", None)))
        if not (isinstance(value, Mapping) and any(kinds)):
            raise
        for name, entry in cast("Mapping[str, object]", value).items():
            try:
                check({name: entry})
            except _FAILURES as error:
                key = f"{action.dest}.{name}"
                problem = TypeError(plain_message(error).replace(action.dest, key, 1))
                break
    raise problem  # outside `except`: `plain_message` reads what an error came from, too


def as_section(action: Any, value: Any, key: str) -> Any:
    """A value as a parser takes it: an empty section of settings has none, and so its defaults.

    Args:
        action: What the parser does with the value.
        value: The value in a configuration.
        key: What the configuration calls it.

    Raises:
        TypeError: It is neither settings nor the path of their file, where a section is wanted.
    """
    if type(action).__name__ != "_ActionConfigLoad":  # jsonargparse has no public name for it
        return value
    if value is None:
        return Namespace()
    if not isinstance(cast("object", value), Mapping | Namespace | str):
        kind = type(value).__name__  # the value may hold a secret
        raise TypeError(f'Parser key "{key}": it must be a mapping of settings, got a {kind}')
    return value


class _OneByOneParser(ArgumentParser):
    """A parser whose errors about a dict of dataclasses name the entry that is wrong."""

    def _check_value_key(
        self, action: Any, value: Any, key: str, *others: Any, **options: Any
    ) -> Any:
        check = cast("Any", super())._check_value_key  # noqa: SLF001 there is no public place
        value = as_section(action, value, key)
        return checked_entries(
            action, lambda each: check(action, each, key, *others, **options), value
        )


def did_you_mean(message: str, keys: Iterable[str]) -> str:
    """A question with the nearest key, if a message is about an unknown key; else nothing.

    >>> keys = ["data.batch_size", "data.train.batch_size", "data.loader.pool"]
    >>> did_you_mean("data.train: Option 'batchsize' is not accepted", keys)
    "; did you mean 'batch_size'?"
    >>> did_you_mean("data: Group 'data' does not accept option 'pool'", keys)
    "; did you mean 'data.loader.pool'?"
    >>> did_you_mean("unrecognized arguments: --data.trian.batch_size=3", keys)
    "; did you mean 'data.train'?"
    """
    match = next(filter(None, (pattern.search(message) for pattern in _UNKNOWN)), None)
    if match is None:
        return ""
    key = match[1].replace(": ", ".")  # of a component: ``data.train: mix.web``
    given = f"{key}.{match[2]}".split(".")
    known = [key.split(".") for key in dict.fromkeys(keys) if ".help" not in key]
    meant = _nearest(given, known)
    return f"; did you mean {meant!r}?" if meant else ""


def _nearest(given: list[str], known: list[list[str]]) -> str | None:
    """What the first unknown part of a key stands for; an entry of a dict, ``*``, has any name."""
    for number, name in enumerate(given):
        here = {key[number]: None for key in known if _is_below(key, given[:number])}
        if name not in here and "*" not in here:
            is_last = number == len(given) - 1
            if close := get_close_matches(name, here, 1):
                return close[0] if is_last else ".".join([*given[:number], close[0]])
            return next((".".join(key) for key in known if is_last and key[-1] == name), None)
    return None


def _is_below(key: list[str], section: list[str]) -> bool:
    return len(key) > len(section) and all(
        fnmatchcase(name, part) for name, part in zip(section, key, strict=False)
    )


def nearest_attribute(error: BaseException) -> str:
    """A question with the nearest name, if an object has no attribute of a name; else nothing."""
    if not isinstance(error, AttributeError) or not error.name:
        return ""
    meant = get_close_matches(error.name, dir(error.obj), 1)
    return f"; did you mean {meant[0]!r}?" if meant else ""


def _parser_of(make: Callable[..., object], section: str) -> Any:
    parser = cast("Any", _OneByOneParser(exit_on_error=False, allow_abbrev=False))
    is_class = isinstance(make, type)
    add = parser.add_class_arguments if is_class else parser.add_function_arguments
    add(make, section, fail_untyped=False, **({"instantiate": False} if is_class else {}))
    return parser


def _instantiated(parser: Any, parsed: Any) -> Any:
    instantiate = getattr(parser, "instantiate", None) or parser.instantiate_classes  # before 4.49
    with warnings.catch_warnings():
        # About `dict[str, Any]`: jsonargparse 5 leaves these to the receiver, and `load_callable`
        # can make them.
        for message in ("Instantiating a subclass spec", "By default only one Jsonargparse"):
            warnings.filterwarnings("ignore", rf"\s*{message}", DeprecationWarning)
        return instantiate(parsed)


def load_callable(name: str, value: object) -> Callable[..., Any]:
    """The callable that a value gives: itself, its import path, or ``class_path``, ``init_args``.

    The path of a class whose instances are callable gives an instance made without arguments.

    Args:
        name: Name of the value in errors.
        value: A callable, an import path, or a dict of ``class_path`` and ``init_args``.

    Raises:
        ConfigError: It names nothing that can be called, or its arguments do not fit.
    """
    try:
        function = _load(value)
    except _FAILURES as error:
        meant = nearest_attribute(error)
        raise ConfigError(f"{name} is {value!r}, which cannot be loaded: {error}{meant}") from error
    if not callable(function):
        raise ConfigError(
            f"{name} must be a callable, its import path like my_module.my_function, or class_path "
            f"and init_args, got {value!r}"
        )
    return function


def load_callables(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """`load_callable` for each value; `name` describes them, as in ``the transform of``."""
    return {key: load_callable(f"{name} {key!r}", value) for key, value in values.items()}


def load_callable_list(name: str, values: object) -> list[Callable[..., Any]]:
    """`load_callable` for each value of the list that errors call `name`.

    Raises:
        ConfigError: One cannot be loaded, or they are in no list.
    """
    if not isinstance(values, list | tuple):
        raise ConfigError(
            f"{name} must be a list of callables, or of what names them, got {values!r}"
        )
    listed = cast("Iterable[object]", values)
    return [load_callable(f"{name}[{number}]", value) for number, value in enumerate(listed)]


def require_no_single_keys(name: str, value: object, example: str) -> None:
    """Refuse a mapping of which options give single keys, as in ``--data.train.keep.of=20``.

    Raises:
        ConfigError: The value is what jsonargparse makes of such an option.
    """
    if type(value).__module__.startswith("jsonargparse."):
        raise ConfigError(
            f"{name} is one value, and an option named a key of it; give all of it at once, as in "
            f"--data.train.{name}={example!r}"
        )


def load_decoders(values: Mapping[str, Any]) -> dict[str, Any]:
    """Decoders of fields and suffixes: names as they are, and callables as `load_callable` does.

    A text with a dot in it is an import path, because no name of a decoder has one.
    """
    return {
        key: load_callable(f"the decoder of {key!r}", value)
        if not isinstance(value, str) or "." in value
        else value
        for key, value in values.items()
    }


def plain_message(error: BaseException) -> str:
    """The message of an error in one line: our own error behind it, or key, rule and value.

    jsonargparse lists all members of a union, level by level. Here only the innermost rule is kept,
    with the whole key: ``data.train.batch_size: expected int or None, got many``.
    """
    keys: list[str] = []
    text = str(error)
    if ours := cause_of(error, ShardError):
        return str(ours)
    for cause in _causes(error):
        match = _KEY.match(str(cause))
        if match:
            text = str(cause)[match.end() :]
            nested = _NESTED.match(text)  # an option of an entry of a dict
            key = f"{match[1]}.{nested[1]}" if nested else match[1]
            if [key] != keys[-1:]:
                keys.append(key)
        elif type(cause).__module__.startswith(("argparse", "jsonargparse")):
            text = str(cause)
    prefix = f"{'.'.join(keys)}: " if keys else ""
    return prefix + " ".join(_reworded(text).split())


def cause_of(error: BaseException, kind: type[_E]) -> _E | None:
    """The outermost error of this kind: the error itself, or one that it wraps; None if none."""
    return next((cause for cause in _causes(error) if isinstance(cause, kind)), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it wraps, outermost first."""
    while error is not None:
        yield error
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or context


def _load(value: object) -> object:
    if isinstance(value, str):
        loaded = resolve_name(value)
        return loaded() if _makes_callables(loaded) else loaded
    if isinstance(value, Namespace):
        return _load(value.as_dict())
    if isinstance(value, Mapping) and "class_path" in value:
        spec = cast("Mapping[str, Any]", value)
        if unknown := sorted(spec.keys() - {"class_path", "init_args"}):
            raise ConfigError(f"it takes class_path and init_args, not {unknown}")
        return build(resolve_name(spec["class_path"]), spec.get("init_args") or {}, "init_args")
    return cast("object", value)


def _makes_callables(kind: object) -> bool:
    """Whether it is a class with callable instances; `float`, which converts values, is not."""
    return isinstance(kind, type) and any("__call__" in vars(base) for base in kind.__mro__)


def _reworded(text: str) -> str:
    """The text as ``expected int or None, got many`` if jsonargparse worded it so."""
    match = _UNION.search(text) or _EXPECTED.fullmatch(text.strip())
    if match is None:
        return text
    kinds = re.sub(r"<class '(?:[\w.]+\.)?(\w+)'>", r"\1", match[1]).replace("typing.", "")
    kinds = re.sub(
        r"(?:\w+\.)+(?=[A-Z]\w+\])", "", kinds
    )  # of an entry, as in dict[str, SplitConfig]
    # Split at the commas outside brackets.
    alternatives = re.split(r", (?![^\[]*\])", kinds.replace("NoneType", "None"))
    got = _OF_OPTION.sub(r"\1=\2", match[2])
    got = _OF_KEY.sub(r"its key \1 alone; give all of its keys at once, as in {\1: \2}", got)
    return f"expected {' or '.join(alternatives)}, got {got}"
