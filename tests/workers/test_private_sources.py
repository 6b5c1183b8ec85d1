"""Trying a sample leaves no trace in the user's transforms."""

import pickle

import numpy as np
import pytest

from lightning_shards import LoaderConfig, SplitConfig
from lightning_shards.build.loaders import make_pool
from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Place
from lightning_shards.workers.inline import try_first_sample

VALUES = 4096


class OpensInFirstCall:
    """The usual transform that looks up each label in a file, which it opens in its first call."""

    deterministic = True

    def __init__(self, path):
        self.path, self.file = path, None

    def __call__(self, label):
        if self.file is None:
            self.file = open(self.path, "rb", buffering=0)  # noqa: SIM115, PTH123
        self.file.seek(8 * int(label))
        return int.from_bytes(self.file.read(8), "little")

    def __del__(self):
        if self.file is not None:
            self.file.close()


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.bin"
    path.write_bytes((np.arange(VALUES, dtype="<u8") * 3).tobytes())
    return str(path)


@pytest.mark.ddp
def test_a_transform_may_open_a_file_in_its_first_call(table, pack_shards, make_module):
    transform = OpensInFirstCall(table)
    split = SplitConfig(pack_shards([16]), sampling="sequential")
    module = make_module(split, num_workers=2, transforms={"label": transform})
    with module.loader("train") as loader:
        assert transform.file is None
        made = [label for batch in loader for label in batch["label"].tolist()]
    assert made == [3 * (number % 10) for number in range(len(made))] != []


class Holds:
    """A transform that counts its calls, and holds something."""

    def __init__(self, held=None):
        self.held, self.calls = held, 0

    def __call__(self, label):
        self.calls += 1
        return label


def test_trying_a_sample_leaves_no_trace_in_a_transform(pack_shards, make_source):
    """Whatever it holds that cannot be pickled."""
    transform = Holds(lambda label: label)
    try_first_sample(make_source(pack_shards([4]), transforms={"label": transform}), Place())
    assert transform.calls == 0


def test_an_open_file_in_a_transform_has_a_remedy_of_its_own(table, pack_shards, make_source):
    with open(table, "rb") as file:  # noqa: PTH123
        source = make_source(pack_shards([4]), transforms={"label": Holds(file)})
        with pytest.raises(ConfigError, match="open files, databases and sessions in its first"):
            make_pool(LoaderConfig(), 2, source, Place())
        with pytest.raises(TypeError):
            pickle.dumps(file)
