"""The door to jsonargparse: makes objects from plain values, and shortens errors to one line.

It imports the classes and functions that are named and runs nothing else: a configuration contains
no expressions.
"""

import json
import re
import warnings
from argparse import ArgumentError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import wraps
from io import StringIO
from pkgutil import resolve_name
from typing import Any, TypeVar, cast, get_args, get_type_hints

import yaml
from jsonargparse import ArgumentParser, Namespace
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import ScalarToken, YAMLError

from lightning_shards.errors import ConfigError, ShardError, path_as_text

_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)

_UNKNOWN = re.compile(
    r"(?:unrecognized arguments: --|[oO]ption '|NestedArg\(key='|has no attribute ')([\w.]+)"
)
"""What jsonargparse 4.53 writes before a key that it does not know, in errors of several kinds."""

_KEY = re.compile(r'Parser key "([^"]+)"')

_BRACED = re.compile(r"\{[^:]+: None[,}]")
"""What YAML makes of {a,b} where a text is wanted."""

_QUOTED = "write braces of a pattern in quotes, as in '{000..012}.tar', and suffixes as jpg;png"

_FAILURES = (ArgumentError, ImportError, AttributeError, TypeError, ValueError)
"""Errors that jsonargparse, imports and constructors raise for values that do not fit."""


PARSER_MODE = "omegaconf+"
"""The mode of all parsers, which resolves interpolations."""

_BASE_60 = re.compile(r"[-+]?([1-9][\d_]*(:[0-5]?\d)+|\d[\d_]*(:[0-5]?\d)+\.[\d_]*)")


def load_yaml(text: str) -> Any:
    """What a file holds, as omegaconf has it.

    Raises:
        ConfigError: It has a number of base 60.
        YAMLError: It is no YAML, or has a key twice.
    """
    refuse_base_60(text)
    return OmegaConf.load(StringIO(text))


def refuse_base_60(text: str) -> None:
    """Refuse a YAML with a number like 1:30, which YAML 1.1 takes for 90.

    Raises:
        ConfigError: There is one.
    """
    with suppress(YAMLError):  # of which a loader will tell
        for token in cast("Any", yaml).scan(text):
            if isinstance(token, ScalarToken) and token.plain and _BASE_60.fullmatch(token.value):
                raise ConfigError(
                    f"YAML reads {token.value} in line {token.start_mark.line + 1} as a number of "
                    "base 60; write the number itself, or put a text in quotes"
                )


def build(make: Callable[..., _T], values: Mapping[str, Any], section: str) -> _T:
    """Call a class or a function with values that are checked against its annotations.

    Args:
        make: A class or a function.
        values: Its arguments in plain types; ``class_path`` and ``init_args`` make an object.
        section: Name of these values in errors.

    Raises:
        ConfigError: A key is unknown or missing, or a value has the wrong type.
        Exception: Any error that `make` itself raises.
    """
    key = re.sub(r"\W", "_", section)  # jsonargparse takes no other letters
    parser = _parser_of(make, key)
    try:
        parsed = parser.parse_object({key: _copied(values)}, env=False)
        require_sections(parser, parsed, key)
        # The warnings are about `dict[str, Any]`: jsonargparse 5 leaves what such a dict names to
        # the receiver, and `load_callable` can make it.
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            made = parser.instantiate(parsed).get(key, Namespace())
    except _FAILURES as error:
        message = plain_message(error)
        message += did_you_mean(message, known_keys(parser))
        problem = cause_of(error, ShardError) or ConfigError(message.replace(key, section, 1))
    else:
        return make(**vars(made))
    raise problem  # outside of `except`, since the parser's error shows values with URLs


def require_sections(parser: Any, parsed: Any, *sections: str) -> None:
    """Refuse what stands for the settings of these sections and is none: jsonargparse ignores it.

    Raises:
        ConfigError: There is such a value.
    """
    for key in [each for each in parser.groups if each.startswith(sections)]:
        if not isinstance(value := parsed.get(key), Namespace):
            raise ConfigError(
                f"{key}: it must be a mapping of settings, got {value!r}; give it settings, or "
                "leave it out"
            )


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
        settings = get_type_hints(kind) if is_dataclass(kind) else {}
        for name, inner in settings.items():
            yield f"{key}.{name}"
            yield from _keys_below(f"{key}.{name}", inner)
        if not settings:
            yield from _keys_below(key, kind)


def with_urls(split: object) -> object:
    """A split that is given by its urls alone as ``{"urls": ...}``, and any other as it is."""
    split = path_as_text(split)
    if isinstance(split, str):
        return {"urls": split}
    if isinstance(split, Sequence):
        return {"urls": list(map(path_as_text, cast("Sequence[object]", split)))}
    return split


TORCH_WORDS = {
    "shuffle": "sampling='shuffled' of a split serves each sample once, in a new order each epoch",
    "drop_last": "remainder='drop' of a split drops what fills no whole step, 'balanced' does not",
    "sampler": "sampling of a split says how samples are drawn, keep and exclude which ones",
    "timeout": "worker_timeout_s of the loader is how long the trainer waits for a batch",
    "persistent_workers": "leave it out, as the workers of train stay from epoch to epoch",
}
"""What stands here for arguments of torch's DataLoader."""


def with_known_names(settings_class: type[_T]) -> type[_T]:
    """The class of settings, whose constructor says what is meant by a name that it lacks."""
    init = settings_class.__init__
    names = [each.name for each in fields(cast("Any", settings_class))]

    @wraps(init)
    def checked_init(self: _T, *given: Any, **settings: Any) -> None:
        for name in [name for name in settings if name not in names]:
            near = get_close_matches(name, names, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise ConfigError(f"there is no setting {name!r} here: {TORCH_WORDS.get(name, meant)}")
        init(self, *given, **settings)

    settings_class.__init__ = checked_init
    return settings_class


def did_you_mean(message: str, keys: Iterable[str]) -> str:
    """A question with the nearest key, if a message is about an unknown key; else nothing.

    >>> keys = ["data.batch_size", "data.train.batch_size", "data.loader.pool"]
    >>> did_you_mean("data.train: Option 'batchsize' is not accepted", keys)
    "; did you mean 'batch_size'?"
    >>> did_you_mean("data: Group 'data' does not accept option 'pool'", keys)
    "; did you mean 'data.loader.pool'?"
    >>> did_you_mean("unrecognized arguments: --data.trian.batch_size=3", keys)
    "; did you mean 'train'?"
    """
    match = _UNKNOWN.search(message)
    if match is None:
        return ""
    known = [key for key in dict.fromkeys(keys) if ".help" not in key]
    names = {name: None for key in known for name in key.split(".")}
    given = match[1].split(".")
    if given[-1] in TORCH_WORDS:
        return f"; {TORCH_WORDS[given[-1]]}"
    misspelt = [name for name in reversed(given) if name not in names]
    close = [near for name in misspelt for near in get_close_matches(name, names, 1)]
    if not misspelt:  # it is a key of another place
        close = [key for key in known if key.split(".")[-1] == given[-1]]
    return f"; did you mean {close[0]!r}?" if close else ""


def _parser_of(make: Callable[..., object], section: str) -> Any:
    options: dict[str, Any] = {"exit_on_error": False, "parser_mode": PARSER_MODE}
    parser = cast("Any", ArgumentParser(allow_abbrev=False, **options))
    if isinstance(make, type):
        parser.add_class_arguments(make, section, fail_untyped=False, instantiate=False)
    else:
        parser.add_function_arguments(make, section, fail_untyped=False)
    return parser


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
        meant = did_you_mean(str(error), dir(getattr(error, "obj", None)))
        raise ConfigError(f"{name} is {value!r}, which cannot be loaded: {error}{meant}") from error
    if not callable(function):
        raise ConfigError(
            f"{name} must be a callable, its import path like my_module.my_function, or class_path "
            f"and init_args, got {value!r}"
        )
    return function


def load_callables(name: str, given: Any) -> Any:
    """`load_callable` of a value, or of each entry of a dict or a list of them.

    A text without a dot in `decode` stays: it is the name of a decoder, and no import path.
    """
    if isinstance(given, list):
        entries = enumerate(cast("list[object]", given))
        return [load_callable(f"{name}[{number}]", value) for number, value in entries]
    if not isinstance(given, dict) or "class_path" in given:
        return load_callable(name, cast("object", given))
    return {
        key: value
        if name == "decode" and isinstance(value, str) and "." not in value
        else load_callable(f"{name}.{key}", value)
        for key, value in cast("dict[str, object]", given).items()
    }


def plain_message(error: BaseException) -> str:
    """The message of an error in one line: that of our own error behind it, or of omegaconf's.

    jsonargparse raises an error for each level of a value from that of the level below: the
    innermost one says what is wrong. A value with URLs is left out, since it may hold secrets.
    """
    if ours := cause_of(error, ShardError):
        return str(ours)
    if unresolved := cause_of(error, OmegaConfBaseException):
        said = str(unresolved).partition("\n")[0]
        is_variable = re.search(r"'\.*[A-Z][A-Z0-9_]*' not found", said)
        remedy = "; a variable of the environment is ${oc.env:NAME}" if is_variable else ""
        return f"{said}, at {cast('Any', unresolved).full_key!r}{remedy}"
    *_, innermost = causes = list(_causes(error))
    keys = [match[1] for cause in causes if (match := _KEY.match(str(cause)))]
    path = ".".join(dict.fromkeys(keys))
    lines = str(innermost).splitlines()[: None if isinstance(innermost, YAMLError) else 1]
    told = _KEY.sub("", " ".join(" ".join(lines).split())).removeprefix(": ")
    if "://" in told or "pipe:" in told:
        told = told.partition(". Got value")[0]
    is_yaml_error = isinstance(innermost, YAMLError) and "expected" in told
    remedy = f"; {_QUOTED}" if is_yaml_error or _BRACED.search(told) else ""
    return ": ".join([*filter(None, [path]), told]) + remedy


def cause_of(error: BaseException, *kinds: type[_E]) -> _E | None:
    """The outermost error of these kinds: the error itself, or one that it wraps; None if none."""
    return next((cause for cause in _causes(error) if isinstance(cause, kinds)), None)


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
