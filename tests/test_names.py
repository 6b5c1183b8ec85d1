"""One name has one meaning, no folder is a heap, and a function fits on a screen."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "lightning_shards"
PROGRAMS = {"main"}
"""Each tool has one."""


def offered(module: Path) -> set[str]:
    """The public names that are defined at the top of a module."""
    names: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Assign():
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name()):
                names.add(node.target.id)
            case _:
                pass
    return {name for name in names if not name.startswith("_")}


def test_no_name_has_two_meanings():
    homes = defaultdict(list)
    for module in sorted(PACKAGE.rglob("*.py")):
        for name in offered(module) - PROGRAMS:
            homes[name].append(str(module.relative_to(PACKAGE)))
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_no_folder_is_a_heap():
    """A folder's list of files is read like a table of contents."""
    sizes = {
        str(folder.relative_to(PACKAGE)): len(list(folder.glob("*.py")))
        for folder in [PACKAGE, *(each for each in PACKAGE.rglob("*") if each.is_dir())]
    }
    assert {name: size for name, size in sizes.items() if size > 15 and name != "tools"} == {}


def test_a_function_fits_on_a_screen():
    long = {
        f"{module.relative_to(PACKAGE)}: {node.name}": lines
        for module in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.FunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > 40
    }
    assert long == {}
