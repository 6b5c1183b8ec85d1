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
import sys
from lightning_shards.__main__ import main
main()
print(sorted({"torch", "lightning", "webdataset"} & sys.modules.keys()))
"""


@pytest.mark.parametrize("command", ["plan", "trace --epoch 0 --steps 0:2"])
def test_tools_that_only_look_load_neither_torch_nor_lightning(command, tmp_path, write_shards):
    write_shards([5, 3])
    data = {
        "train": {"urls": str(tmp_path / "*.tar"), "sampling": "shuffled"},
        "fields": {"label": "cls", "text": "txt"},
        "batch_size": 2,
        "loader": {"cache_dir": str(tmp_path / "cache")},
    }
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"trainer": {"devices": 2}, "data": data}))
    called = [sys.executable, "-c", PROGRAM, *command.split(), "--config", config]
    done = subprocess.run(called, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.endswith("\n[]\n")


def test_the_settings_are_the_arguments_of_the_data_module():
    of_module = inspect.signature(ShardDataModule).parameters
    of_config = dict(inspect.signature(DataConfig).parameters)
    assert {field.name for field in fields(DataConfig)} == set(of_config) == set(of_module)
    assert of_config.pop("fields").default is None  # needed, as the settings themselves say
    splits = {"train", "val", "test", "predict"}  # which may be given by their shards alone
    for name, parameter in of_config.items():
        annotation = of_module[name].annotation if name in splits else parameter.annotation
        assert of_module[name] == parameter.replace(annotation=annotation)
