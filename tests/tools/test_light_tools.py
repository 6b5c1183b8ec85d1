"""Tools that only look start without torch and without Lightning."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from lightning_shards.__main__ import main
main()
print(sorted({"torch", "lightning", "webdataset"} & sys.modules.keys()))
"""


@pytest.mark.parametrize("command", ["plan", "trace --epoch 0 --steps 0:2"])
def test_tools_that_only_look_load_neither_torch_nor_lightning(command, write_config, write_shards):
    config = write_config({"urls": write_shards([5, 3]), "sampling": "shuffled"}, {"devices": 2})
    called = [sys.executable, "-c", PROGRAM, *command.split(), "--config", config]
    done = subprocess.run(called, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.endswith("\n[]\n")
