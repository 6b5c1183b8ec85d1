"""A command line of a small configuration, read in this process."""

import sys
from copy import deepcopy
from typing import Any

import pytest
import yaml
from ignored_warnings import ignored_below
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_shards import ShardCLI

CONFIG: dict[str, Any] = {
    "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False},
    "data": {
        "train": {"urls": "train-{000..003}.tar", "batch_size": 8},
        "val": {"urls": ["val-0.tar", "val-1.tar"], "sampling": "sequential"},
        "fields": {"image": "jpg;png", "label": "cls"},
        "decode": {"image": "gray"},
        "num_workers": 0,
        "loader": {"prefetch_factor": 4},
    },
}
TRANSFORMS = '''
class Times:
    """A transform with a setting."""

    def __init__(self, factor: int = 2) -> None:
        self.factor = factor

    def __call__(self, value):
        return value * self.factor


def double(value):
    return 2 * value
'''


pytest_collection_modifyitems = ignored_below(
    __file__,  # what Lightning 2.6 does with jsonargparse 4.53, and its wish for tensorboard
    ":jsonargparse._deprecated.JsonargparseDeprecationWarning",
    "Starting from v1.9.0, `tensorboardX` has been removed",
)


@pytest.fixture(autouse=True)
def called_from_python(monkeypatch):
    """Without pytest's own options, without a seed for what comes after, and with our path."""
    monkeypatch.setattr(sys, "argv", ["lightning-shards"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")


@pytest.fixture
def config():
    """A small configuration, this test's own."""
    return deepcopy(CONFIG)


@pytest.fixture
def transforms(tmp_path, monkeypatch):
    """The module `my_transforms`, which can be imported."""
    (tmp_path / "my_transforms.py").write_text(TRANSFORMS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_transforms", raising=False)


@pytest.fixture
def make_cli(tmp_path, config):
    """Reads the configuration, changed, and the options; runs nothing."""

    def made(*options, cli=ShardCLI, settings=None, **changes):
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(config | changes, sort_keys=False))
        kinds = {"model_class": BoringModel} | (settings or {})
        return cli(args=["--config", str(path), *options], run=False, **kinds)

    return made


@pytest.fixture
def refused(make_cli, capsys):
    """What the command line says of these options, and that it ends with exit status 2."""

    def told(*options, **changes):
        with pytest.raises(SystemExit) as ended:
            make_cli(*options, **changes)
        assert ended.value.code == 2
        lines = capsys.readouterr().err.splitlines()
        assert not any(line.startswith(("Traceback", "usage:")) for line in lines)
        [first] = [number for number, line in enumerate(lines) if line.startswith("error: ")]
        return "\n".join(lines[first:]).removeprefix("error: ")

    return told
