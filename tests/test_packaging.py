"""What a package index shows, and what an install brings: no empty extra, no import undeclared."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from lightning_shards import ConfigError
from lightning_shards.samples import images

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
MODULES = {"cv2": "opencv-python-headless", "PIL": "pillow", "yaml": "pyyaml", "zlib_ng": "zlib-ng"}
"""Distributions by the names of their modules, where these differ."""


def distributions(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", requirement)[0].lower() for requirement in requirements}


def imported(file: Path) -> set[str]:
    """The packages that a module imports by statements."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


def test_every_import_is_of_a_declared_dependency():
    declared = distributions(PROJECT["project"]["dependencies"])
    for extra in ("image", "ray", "remote", "table", "checksum"):
        declared |= distributions(PROJECT["project"]["optional-dependencies"][extra])
    names = set().union(*map(imported, (ROOT / "lightning_shards").rglob("*.py")))
    foreign = names - sys.stdlib_module_names - {"lightning_shards"}
    assert {MODULES.get(name, name) for name in foreign} - declared == set()


def test_every_remedy_names_an_extra_that_exists():
    texts = [path.read_text() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))]
    texts += [path.read_text() for path in (ROOT / "lightning_shards").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"lightning-shards\[([\w,]+)\]", text)}
    called = [call for text in texts for call in re.findall(r" require_library\((.*)\)\n", text)]
    named |= {call.split(", ")[3].strip('"') for call in called if ":" not in call}  # its `extra`
    extras = PROJECT["project"]["optional-dependencies"]
    assert named >= {"image", "media", "ray", "remote", "table"}
    assert {name for each in named for name in each.split(",")} <= extras.keys()


def test_one_command_for_images_stands_in_the_first_lines_and_in_the_error(monkeypatch):
    command = "pip install 'lightning-shards[image]'"
    assert command in "\n".join(README.splitlines()[:12])
    monkeypatch.setattr("lightning_shards.errors.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=re.escape(command)):
        images.require_backend("pillow")


def test_no_link_of_the_readme_is_relative_on_a_package_index():
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    shown = README
    for change in hook["substitutions"]:
        shown = re.sub(change["pattern"], change["replacement"], shown)
    assert re.findall(r"\]\((?!https?:)[^)]*\)", shown) == []
    named = re.findall(r": `([\w/]+\.md)`", shown)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).is_file()] == []
