"""What names a callable, and what names none."""

import functools
from typing import Any

import pytest

from lightning_shards.config.parsing import load_callable
from lightning_shards.errors import ConfigError


class Times:
    """A callable with a setting."""

    def __init__(self, factor: int = 2) -> None:
        if factor == 13:
            raise ValueError("13 brings no luck")
        self.factor = factor

    def __call__(self, value: int) -> int:
        return value * self.factor


class Both:
    """A callable made of callables, given in its `Any` argument."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def __call__(self, value: int) -> int:
        return functools.reduce(lambda result, part: part(result), self.parts, value)


def double(value: int) -> int:
    return 2 * value


def spec(name: str, **init_args: Any) -> dict[str, Any]:
    return {"class_path": f"{__name__}.{name}", "init_args": init_args}


@pytest.mark.parametrize(
    ("named", "result"),
    [
        (double, 42),
        (Times(3), 63),
        (f"{__name__}.Times", 42),
        ("builtins.float", 21.0),
        (spec("Times", factor=3), 63),
        (spec("Both", parts=[spec("Times", factor=3), spec("Times")]), 126),
    ],
)
def test_what_names_a_callable_gives_it(named, result):
    assert load_callable("this", named)(21) == result


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (3, r"this must be a callable, its import path like .*, or class_path and .*, got 3"),
        ("json.load_all", r"this is 'json.load_all', which cannot be loaded: module 'json' has no"),
        ("no_such_module.flip", r"cannot be loaded: No module named 'no_such_module'"),
        ("print(1)", r"this is 'print\(1\)', which cannot be loaded: invalid format"),
        (spec("Times", factr=3), r"does not accept option 'factr'"),
        (
            spec("Times", factor="many"),
            r"init_args.factor: Expected a <class 'int'>. Got value: many",
        ),
        (spec("Times", factor=13), r"13 brings no luck"),
        (spec("Times") | {"args": 1}, r"takes class_path and init_args, not \['args'\]"),
    ],
)
def test_what_names_none_is_refused(named, message):
    with pytest.raises(ConfigError, match=message):
        load_callable("this", named)
