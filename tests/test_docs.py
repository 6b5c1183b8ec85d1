"""The pages are true: their snippets, configurations, and the parts that are made from the code.

`>>>` snippets run as doctests; `.ci/run` builds the pages with warnings as errors.
"""

import ast
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import generated_parts
import pytest
import torch
import yaml

import lightning_shards
from lightning_shards import ShardCLI, ShardDataModule
from lightning_shards.build.loaders import describe
from lightning_shards.tools import plan
from lightning_shards.workers.pool import PoolDescription

pytestmark = [
    # Lightning 2.6's own use of jsonargparse 4.53
    pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed"),
]

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted(DOCS.glob("*.md"))
NOT_OURS = {"photos/", "train.py", "utils.py"}
"""Files of others, and one that there shall not be."""

LEAST = {"train": {"urls": "a.tar"}, "fields": {"image": "jpg", "sound": "npy"}}
"""What a fragment of a configuration is put into."""


def blocks_of(language: str) -> list[Any]:
    """The code blocks of all pages, each under its page and line."""
    found: list[Any] = []
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            found.append(pytest.param(match[1], id=f"{page.name}:{line}"))
    return found


class Nothing(torch.nn.Module):
    """Stands for a class of the reader's own."""

    def __init__(self, **settings: object) -> None:
        super().__init__()

    def __call__(self, value: object) -> object:
        return value


@pytest.fixture
def my_project(monkeypatch):
    """The module that pages give to the reader."""
    from lightning.pytorch.demos.boring_classes import BoringModel

    module = ModuleType("my_project")
    for name in ("RandomCrop", "CenterCrop", "CropAlike"):
        setattr(module, name, type(name, (Nothing,), {"__module__": "my_project"}))
    module.normalize = module.only_large_images = module.packed = lambda value: value
    module.decode_wav = module.decode_nifti = len
    module.Classifier = type("Classifier", (BoringModel,), {"__module__": "my_project"})
    monkeypatch.setitem(sys.modules, "my_project", module)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # seed_everything sets it, this takes it back
    monkeypatch.setattr(sys, "argv", ["lightning-shards"])


@pytest.mark.parametrize("block", blocks_of("yaml"))
@pytest.mark.usefixtures("my_project")
def test_a_configuration_of_a_page_is_read(block, tmp_path):
    fragment = re.match(r"# part of data(?:\.(\w+))?\n", block)
    settings = yaml.safe_load(block)
    if fragment:
        place = {fragment[1]: settings} if fragment[1] else settings
        assert ShardDataModule.from_config({**LEAST, **place}).splits["train"]
        return
    config = tmp_path / "config.yaml"
    config.write_text(block)
    cli = ShardCLI(args=["--config", str(config), "--trainer.accelerator=cpu"], run=False)
    assert cli.datamodule.splits["train"].urls == settings["data"]["train"]["urls"]


@pytest.mark.parametrize("block", blocks_of("python"))
def test_python_of_a_page_compiles_and_imports_public_names(block):
    if ">>>" in block:  # run by doctest
        return
    tree = ast.parse(block.replace("\nreturn ", "\n"))  # the body of a function, once
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "lightning_shards"
        for alias in node.names
    }
    assert imported <= set(lightning_shards.__all__)


# lightning/pytorch/utilities/_pytree.py, torch 2.13
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
def test_the_program_of_predictions_runs(tmp_path, monkeypatch):
    (program,) = (
        code for param in blocks_of("python") for code in param.values if "class Doubles" in code
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # where the cache is
    exec(program, {"__name__": "page"})
    assert len([*(tmp_path / "out").iterdir()]) == 1


def test_the_page_of_mixtures_shows_what_the_plan_and_the_log_say_of_the_example(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)
    import_module("examples.mixture").pack(tmp_path / "data/mixture")
    page = (DOCS / "sampling.md").read_text()
    settings = re.findall(r"^```yaml\n# part of data\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    data = yaml.safe_load(settings[0]) | {
        "fields": {"image": "png", "label": "cls"},
        "decode": {"image": "gray"},
        "num_workers": 0,
        "loader": {"cache_dir": "cache"},
    }
    config = {"trainer": {"max_epochs": 3}, "data": data}
    Path("config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    _, of_plan, of_log = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    plan.main(["--config", "config.yaml", "--world-size", "4"])
    assert capsys.readouterr().out.endswith(f"\n\n{of_plan}")
    source = ShardDataModule.from_config("config.yaml").source("train")
    assert describe("train", source, 4, PoolDescription("inline")) + "\n" == of_log


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_are_there(page):
    text = page.read_text()
    named = set(re.findall(r"`((?:\w+/)+|(?:\w+/)*\w+\.py)`", text))
    linked = set(re.findall(r"\]\(([\w/.]+\.md)", text))
    roots = (ROOT, ROOT / "lightning_shards", ROOT / "benchmarks", page.parent)
    missing = [
        name
        for name in (named | linked) - NOT_OURS
        if not any((root / name).exists() for root in roots)
    ]
    assert missing == []


def test_the_pages_are_few_and_short():
    made = {"index", "api", "changelog", "contributing", "security"}  # generated or included
    written = [page for page in DOCS.glob("*.md") if page.stem not in made]
    assert len(written) == 12
    assert sum(len(page.read_text().splitlines()) for page in written) <= 1_700


def test_the_tools_have_the_options_that_pages_name():
    helps = generated_parts.list_tools()
    commands = [
        (match[1], option)
        for page in PAGES
        for match in re.finditer(r"lightning-shards (\w+)([^`\n]*)", page.read_text())
        for option in re.findall(r"--[a-z][\w-]*", match[2])
        if match[1] in helps
    ]
    assert len(commands) > 20
    assert [(tool, option) for tool, option in commands if option not in helps[tool]] == []


def test_the_map_names_every_module_with_a_sentence():
    files = (ROOT / "lightning_shards").rglob("*.py")
    modules = generated_parts.list_modules()
    assert set(modules) == {str(file.relative_to(ROOT / "lightning_shards")) for file in files}
    assert {name for name, line in modules.items() if not line.endswith((".", "?"))} == set()


def test_the_api_has_every_public_name_once():
    page = generated_parts.fill_in((DOCS / "api.md").read_text())
    names = re.findall(r"^\.\. auto\w+:: lightning_shards\.(\w+)$", page, re.MULTILINE)
    assert sorted(names) == lightning_shards.__all__
