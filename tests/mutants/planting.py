"""Plants one bug in a copy of the package: by a function's name and a piece of its source."""

import ast
from pathlib import Path
from typing import NamedTuple

PACKAGE = "lightning_shards"


class CannotPlantError(Exception):
    """The function, or the piece of its source, is not there just once: the code has moved on."""


class Mutant(NamedTuple):
    """One bug.

    Attributes:
        where: module below the package and qualified name, as in `plan.epoch:EpochPlan.steps`.
        old: a piece of that function's source, which must stand there once.
        new: what is put in its place.
        tests: the files of tests, below `tests/`, one of which must fail.
    """

    where: str
    old: str
    new: str
    tests: str

    @property
    def test_paths(self) -> list[str]:
        """The files of tests, from the root of the project on."""
        return [f"tests/{name}" for name in self.tests.split()]

    def __str__(self) -> str:
        shown = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.where}: {' -> '.join(shown)}"


def plant(mutant: Mutant, root: Path) -> None:
    """Change the copy of the project at `root`.

    Raises:
        CannotPlantError: there is no one place for it, or what comes out is no Python.
    """
    module, _, name = mutant.where.partition(":")
    path = root.joinpath(PACKAGE, *module.split(".")).with_suffix(".py")
    source = path.read_text()
    start, stop = _extent(source, name.split("."), mutant)
    body = source[start:stop]
    if body.count(mutant.old) != 1 or mutant.old == mutant.new:
        raise CannotPlantError(
            f"{mutant}: the piece stands {body.count(mutant.old)} times in the function, not once"
        )
    changed = source[:start] + body.replace(mutant.old, mutant.new) + source[stop:]
    try:
        ast.parse(changed)
    except SyntaxError as error:
        raise CannotPlantError(f"{mutant}: {error}") from error
    path.write_text(changed)


def _extent(source: str, names: list[str], mutant: Mutant) -> tuple[int, int]:
    """Where the source of a function begins and ends, decorators left out."""
    node: ast.AST = ast.parse(source)
    for name in names:
        definitions = ast.iter_child_nodes(node)
        kinds = (ast.FunctionDef, ast.ClassDef)
        inner = next((e for e in definitions if isinstance(e, kinds) and e.name == name), None)
        if inner is None:
            raise CannotPlantError(f"{mutant}: there is no {name!r}")
        node = inner
    lines = source.splitlines(keepends=True)
    ends = [sum(map(len, lines[:number])) for number in (node.lineno - 1, node.end_lineno)]
    return ends[0], ends[1]
