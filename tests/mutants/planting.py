"""Plants one bug in a copy of the package: a function is put around one of the package's own.

Bugs are planted by name, wherever the name is defined, and by behaviour, not by a piece of source:
so they outlive a function that is written anew and a module that is moved. What is planted stands
at the end of the module, and acts in every process that imports it.
"""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = "lightning_shards"

_IMPORTS = """
import functools as _functools
import os
from dataclasses import replace

import numpy as np
"""
"""What bugs may use, besides the names of the module where they are planted."""

_WIRING = """

def _around(old):
    if isinstance(old, property):
        return property(_around(old.fget))
    if isinstance(old, _functools.cached_property):
        new = _functools.cached_property(_around(old.func))
        new.__set_name__(None, old.attrname)
        return new
    return _functools.wraps(old)(lambda *given, **named: {bug}(old, *given, **named))


_owner = {owner}
_old = vars(_owner)["{name}"]
setattr(_owner, "{name}", _around(_old))
"""


class CannotPlantError(Exception):
    """No one module defines the name, so the catalogue must say where the behaviour is now."""


class Bug(NamedTuple):
    """One bug: the guarantee that it breaks, the name that it acts on, and the tests to find it.

    `source` is that of a function which gets the original as its first argument. `tests` are files
    below `tests/`, one of which must fail.
    """

    guarantee: str
    target: str
    tests: str
    name: str
    source: str

    @property
    def test_paths(self) -> list[str]:
        return [f"tests/{name}" for name in self.tests.split()]

    def __str__(self) -> str:
        return f"{self.guarantee}: {self.name.replace('_', ' ')} ({self.target})"


BUGS: list[Bug] = []


def breaks(guarantee: str, target: str, tests: str) -> Callable[[Any], Any]:
    """Adds the function below to the catalogue; `target` is a function, or a method of a class."""

    def add(function: Any) -> Any:
        source = inspect.getsource(function)
        source = source[source.index("def ") :]
        BUGS.append(Bug(guarantee, target, tests, function.__name__, source))
        return function

    return add


def module_of(bug: Bug, root: Path) -> Path:
    """The file of the package at `root` that defines the name which the bug acts on."""
    defined = re.compile(rf"^(class|def) {bug.target.partition('.')[0]}\b", re.MULTILINE)
    paths = root.joinpath(PACKAGE).rglob("*.py")
    found = [path for path in paths if defined.search(path.read_text())]
    if len(found) != 1:
        raise CannotPlantError(f"{bug}: defined in {len(found)} modules, not in one")
    return found[0]


def plant(bug: Bug, root: Path) -> None:
    """Change the copy of the project at `root`."""
    path = module_of(bug, root)
    owner, _, name = bug.target.rpartition(".")
    owner = owner or '__import__("sys").modules[__name__]'
    wiring = _WIRING.format(bug=bug.name, owner=owner, name=name)
    path.write_text(f"{path.read_text()}\n{_IMPORTS}\n\n{bug.source}\n{wiring}")
