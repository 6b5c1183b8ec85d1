"""Tools that only look start without torch and without Lightning."""

import inspect
import json
import subprocess
import sys
from dataclasses import fields

import pytest

from lightning_shards import ShardDataModule
from lightning_shards.config.module import DataConfig

PROGRAM = """
import contextlib, io, json, sys
from lightning_shards.__main__ import main

loaded = {}
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["lightning-shards", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main()
    assert said.getvalue(), arguments
    heavy = {"torch", "lightning", "webdataset"} & sys.modules.keys()
    loaded[" ".join(arguments[:2])] = sorted(heavy)
print(json.dumps(loaded))
"""


@pytest.fixture
def loaded(tmp_path, write_shards):
    """By command, what is loaded after it, run in this order in one process of its own."""
    write_shards([5, 3])
    data = {
        "train": {"urls": str(tmp_path / "*.tar"), "sampling": "shuffled"},
        "fields": {"label": "cls", "text": "txt"},
        "batch_size": 2,
        "loader": {"cache_dir": str(tmp_path / "cache")},
    }
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"trainer": {"devices": 2}, "data": data}))
    shards = [str(tmp_path / "*.tar"), "--cache-dir", str(tmp_path / "cache"), "--processes", "1"]

    def run(*commands):
        known = {"CONFIG": [f"--config={config}"], "SHARDS": shards}
        full = [[y for x in command.split() for y in known.get(x, [x])] for command in commands]
        called = [sys.executable, "-c", PROGRAM, json.dumps(full)]
        done = subprocess.run(called, capture_output=True, text=True, check=True, timeout=120)
        return json.loads(done.stdout)

    return run


def test_tools_that_only_look_load_neither_torch_nor_lightning(loaded):
    after = loaded("--help", "info SHARDS", "plan CONFIG", "trace CONFIG --epoch 0 --steps 0:2")
    assert {name for names in after.values() for name in names} == set()


def test_the_settings_are_the_arguments_of_the_data_module():
    of_module = inspect.signature(ShardDataModule).parameters
    of_config = dict(inspect.signature(DataConfig).parameters)
    assert {field.name for field in fields(DataConfig)} == set(of_config) == set(of_module)
    assert of_config.pop("fields").default is None  # needed, as the settings themselves say
    splits = {"train", "val", "test", "predict"}  # which may be given by their shards alone
    for name, parameter in of_config.items():
        annotation = of_module[name].annotation if name in splits else parameter.annotation
        assert of_module[name] == parameter.replace(annotation=annotation)
