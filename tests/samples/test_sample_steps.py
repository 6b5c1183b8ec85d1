"""What a sample transform is given under which name, and whose time it takes."""

from time import perf_counter

import numpy as np
import pytest

from lightning_shards import SplitConfig
from lightning_shards.errors import TransformError
from lightning_shards.readers import indexed


class Timed:
    """Gives samples as they are, and adds up the seconds that it has taken."""

    def __init__(self):
        self.taken_s = 0.0

    def __call__(self, sample):
        begun = perf_counter()
        np.sort(np.arange(100_000)[::-1])
        self.taken_s += perf_counter() - begun
        return sample


def misspells_taken(sample):
    return sample


misspells_taken.takes_fields = ["lable"]


@pytest.fixture(params=["stream", "indexed", "indexed by samples"])
def make_loader(request, make_module, pack_shards, monkeypatch):
    if request.param == "indexed by samples":
        monkeypatch.setattr(indexed, "can_decode", lambda _: False)
    reader = request.param.split()[0]

    def make(transform):
        split = SplitConfig(pack_shards([8]), sampling="shuffled", reader=reader)
        module = make_module(split, sample_transforms=[transform], batch_size=4, num_workers=0)
        return module.loader("train")

    return make


def test_its_time_is_told_as_that_of_transforms(make_loader):
    timed = Timed()
    loader = make_loader(timed)
    assert len(list(loader)) == 2
    assert loader.times.stages["transform"] >= timed.taken_s > 0


def test_a_name_in_takes_fields_that_is_no_field_is_an_error(make_loader):
    with pytest.raises(TransformError, match="takes_fields names 'lable', which no sample has"):
        next(iter(make_loader(misspells_taken)))
