"""The public names: complete, in order, and free until they are used."""

import importlib
import subprocess
import sys

import pytest

import lightning_shards


def test_the_names_are_those_that_can_be_loaded():
    assert lightning_shards.__all__ == sorted(lightning_shards._HOMES) == dir(lightning_shards)


@pytest.mark.parametrize("name", lightning_shards.__all__)
def test_a_name_is_what_its_module_defines(name):
    module = importlib.import_module(lightning_shards._HOMES[name])
    assert getattr(lightning_shards, name) is vars(module)[name]


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'ShardLoeder'"):
        _ = lightning_shards.ShardLoeder


def test_importing_the_package_loads_nothing_heavy():
    heavy = {"torch", "lightning", "webdataset", "numpy", "PIL"}
    code = f"import sys, lightning_shards; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
