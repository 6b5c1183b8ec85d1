"""The parts of the pages that are made from the code: options, `--help`, modules, API.

A page asks for one by a line ``<!-- generated: NAME ARGUMENT -->``, which that part replaces.
"""

import ast
import inspect
import io
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import docstring_parser

import lightning_shards

PACKAGE = Path(lightning_shards.__file__).parent

_ASKED_FOR = re.compile(r"^<!-- generated: (\w+) ?(\w*) -->$", re.MULTILINE)
_HELP_COLUMNS = "90"

_API_SECTIONS = {
    "The Lightning face": ("cli", "config", "datamodule"),
    "Callbacks": ("callbacks",),
    "Loaders and data sets": ("build", "loader", "readers", "workers"),
    "Transforms and collation": ("samples",),
    "The arithmetic of an epoch": ("plan",),
    "Shards on disk": ("shards", "dataprep"),
    "Errors": ("errors",),
}
"""Each public name stands in the section of the folder or module that defines it."""


def fill_in(page: str) -> str:
    """The page with its generated parts.

    Raises:
        KeyError: it asks for a part that there is not.
    """
    return _ASKED_FOR.sub(lambda match: _PARTS[match[1]](match[2]), page)


def list_modules() -> dict[str, str]:
    """The first line of each module's docstring, by the module's path in the package."""
    docstrings = {
        str(path.relative_to(PACKAGE)): ast.get_docstring(ast.parse(path.read_text()))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    return {path: docstring.splitlines()[0] for path, docstring in docstrings.items()}


def list_options(name: str) -> Iterator[tuple[str, str, str]]:
    """The name, the type with its default, and the description of each option of a public class."""
    described = {
        each.arg_name: each.description
        for each in docstring_parser.parse(getattr(lightning_shards, name).__doc__).params
    }
    options = inspect.signature(getattr(lightning_shards, name)).parameters.values()
    for option in sorted(options, key=lambda each: list(described).index(each.name)):
        default = "needed"
        if option.default is not inspect.Parameter.empty:
            default = f"default `{_default_text(option.default)}`"
        kind = f"`{_type_text(option.annotation)}`, {default}"
        yield option.name, kind, described[option.name]


def _type_text(annotation: object) -> str:
    text = inspect.formatannotation(annotation).replace("typing.", "")
    text = re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)
    return re.sub(r"lightning_shards\.config\.\w+\.", "", text)


def _default_text(default: object) -> str:
    """As code would write it; of a configuration its class, and of a list that each has, `[]`."""
    if is_dataclass(default):
        return f"{type(default).__name__}()"
    return "[]" if "<factory>" in repr(default) else repr(default)


def _modules(_: str) -> str:
    folders: dict[str, list[str]] = {}
    for path, line in list_modules().items():
        folder, _, name = path.rpartition("/")
        lines = folders.setdefault(folder, [])
        if name == "__init__.py":
            lines.insert(0, f"{line}\n")
        else:
            lines.append(f"- `{name}`: {line}")
    return "\n\n".join(
        "\n".join([f"### `lightning_shards/{folder}`\n", *lines])
        for folder, lines in folders.items()
    )


def _options(name: str) -> str:
    return "\n\n".join(
        f"**{option}** ({kind})\\\n{' '.join(text.split())}"
        for option, kind, text in list_options(name)
    )


def list_tools() -> dict[str, str]:
    """What each tool says to `--help`, by its name."""
    tools = import_module("lightning_shards.__main__")._TOOLS  # noqa: SLF001 the list of commands
    return {name: _help_of(f"lightning_shards.tools.{name}") for name in sorted(tools)}


def _tools(_: str) -> str:
    return "\n\n".join(f"### {name}\n\n```text\n{text}```" for name, text in list_tools().items())


def _help_of(module: str) -> str:
    text = io.StringIO()
    asked_by_argparse = {"COLUMNS": _HELP_COLUMNS, "NO_COLOR": "1"}
    with patch.dict("os.environ", asked_by_argparse), redirect_stdout(text), suppress(SystemExit):
        import_module(module).main(["--help"])
    return text.getvalue()


def _api(_: str) -> str:
    homes = {
        name: getattr(lightning_shards, name).__module__.split(".")[1]
        for name in lightning_shards.__all__
    }
    unplaced = set(homes.values()).difference(*_API_SECTIONS.values())
    if unplaced:
        raise KeyError(f"no section of the API page is for {sorted(unplaced)}; add one")
    return "\n\n".join(
        "\n".join([f"## {title}\n", *(_autodoc(name) for name in homes if homes[name] in folders)])
        for title, folders in _API_SECTIONS.items()
    )


def _autodoc(name: str) -> str:
    kind = "class" if inspect.isclass(getattr(lightning_shards, name)) else "function"
    members = "\n   :members:" if kind == "class" else ""
    return (
        f"### `{name}`\n\n```{{eval-rst}}\n.. auto{kind}:: lightning_shards.{name}{members}\n```\n"
    )


_PARTS: dict[str, Callable[[str], str]] = {
    "api": _api,
    "modules": _modules,
    "options": _options,
    "tools": _tools,
}
