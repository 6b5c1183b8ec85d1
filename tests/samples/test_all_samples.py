"""What samples/ guarantees, in the names of its tests: draws by position, and nothing is run."""

import io
import json
import os
import pickle
import random

import numpy as np
import pytest
import torch

from lightning_shards import SplitConfig
from lightning_shards.errors import DamagedShardError, SampleError, UnsafeError
from lightning_shards.plan.draws import Purpose
from lightning_shards.samples.generators import SampleSeeds, preserved_globals

# --- one stream of random numbers for each sample -------------------------------------------------


def test_a_sample_draws_numbers_of_philox_at_its_seed_epoch_start_and_position():
    seeds = SampleSeeds(1, 2, 3)
    for position in (7, 7, 8):  # whatever was drawn before, half a word of it also
        key, counter = (
            np.array(of, np.uint64) for of in ([1, 2], [0, position, 3, Purpose.TRANSFORMS])
        )
        philox = np.random.Generator(np.random.Philox(key=key, counter=counter))
        expected = philox.integers(2**31, dtype=np.int32, size=3)
        drawn = seeds.generator(position).integers(2**31, dtype=np.int32, size=3)
        assert drawn.tolist() == expected.tolist()


def test_global_generators_follow_the_position():
    def draw(position):
        SampleSeeds(1, 2, 3).seed_globals(position)
        return random.random(), np.random.random(), float(torch.rand(()))  # noqa: NPY002

    with preserved_globals():
        assert draw(7) == draw(7)
        assert all(a != b for a, b in zip(draw(7), draw(8), strict=True))


# --- shards are data: nothing in them, and no URL, runs a program unless it was switched on -------


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.fixture
def url(tmp_path, canary, write_tar):
    """A shard of two samples with a payload in everything that could be unpickled."""
    poison, pth = pickle.dumps(Payload(canary)), saved(Payload(canary))
    of_sample = {"cls": b"1", "pkl": poison, "pickle": poison, "pyd": poison, "pth": pth}
    members = [(f"{key}.{suffix}", data) for key in "01" for suffix, data in of_sample.items()]
    return str(write_tar(tmp_path / "shard.tar", members))


@pytest.fixture
def first_batch(make_module, url):
    """The first batch that a data module makes of the shard."""

    def load(fields, split=None, **settings):
        module = make_module(split or SplitConfig(url), fields=fields, **settings)
        return next(iter(module.loader("train")))

    return load


@pytest.mark.parametrize(
    ("suffix", "decode"),
    [("pkl", {}), ("PKL", {}), ("v1.pkl.gz", {}), ("cls", {"x": "pickle"}), ("cls", {"x": "pth"})],
)
def test_a_field_that_would_be_unpickled_is_refused(first_batch, canary, suffix, decode):
    name = decode.get("x", "pickle")
    with pytest.raises(UnsafeError, match=rf"field 'x'.*'{name}'.*allow_unsafe=\['{name}'\]"):
        first_batch({"x": suffix}, decode=decode)
    assert not canary.exists()


SWITCH = {"allow_unsafe": ["pickle", "pth", "pipe"], "data": {"allow_unsafe": ["pickle"]}}
BESIDE_SHARDS = {
    "wids.json": {"wids_version": 1, "shardlist": [{"url": "shard.tar", "nsamples": 2} | SWITCH]},
    ".nv-meta/dataset.yaml": {},
    "config.yaml": {"train": {"allow_unsafe": ["pickle"]}},
}


@pytest.mark.parametrize("name", BESIDE_SHARDS)
def test_no_file_beside_shards_switches_anything_on(
    first_batch, canary, url, tmp_path, monkeypatch, name
):
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / name).write_text(json.dumps(BESIDE_SHARDS[name] | SWITCH))  # JSON is YAML, too
    monkeypatch.chdir(tmp_path)
    for field in ("pkl", "pth"):
        with pytest.raises(UnsafeError):
            first_batch({"x": field})
    with pytest.raises(UnsafeError):
        first_batch({"x": "cls"}, SplitConfig(f"pipe:cat {url}", dataset_size=2))
    assert first_batch({"label": "cls"})["label"].tolist() == [1, 1]
    assert not canary.exists()


def test_pickles_are_loaded_when_they_are_switched_on_and_the_rest_stays_off(
    first_batch, canary, url
):
    with pytest.raises(SampleError, match="File exists"):  # the payload of the second sample
        first_batch({"x": "pkl"}, allow_unsafe=["pickle"])
    assert canary.exists()
    with pytest.raises(UnsafeError, match="'pth'"):
        first_batch({"x": "pth"}, allow_unsafe=["pickle"])
    with pytest.raises(UnsafeError, match="shell command"):
        first_batch({"x": "cls"}, SplitConfig(f"pipe:cat {url}"), allow_unsafe=["pickle"])


def test_saved_tensors_are_loaded_when_they_are_switched_on_without_their_code(
    first_batch, canary, tmp_path, write_tar
):
    with pytest.raises(SampleError, match="as 'pth' for field 'x'"):
        first_batch({"x": "pth"}, allow_unsafe=["pth"])
    assert not canary.exists()
    other = write_tar(tmp_path / "0.tar", [(f"{key}.pth", saved(torch.arange(3))) for key in "01"])
    batch = first_batch({"x": "pth"}, SplitConfig(str(other)), allow_unsafe=["pth"])
    assert batch["x"].tolist() == [[0, 1, 2], [0, 1, 2]]


def test_a_pipe_is_refused_unless_it_is_switched_on(first_batch, canary, url):
    with pytest.raises(UnsafeError, match=r"run a shell command.*allow_unsafe=\['pipe'\]"):
        first_batch({"x": "cls"}, SplitConfig(f"pipe:mkdir {canary}", dataset_size=2))
    assert not canary.exists()
    split = SplitConfig(f"pipe:cat {url}", dataset_size=2)
    assert first_batch({"x": "cls"}, split, allow_unsafe=["pipe"])["x"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("command", "status"), [("head -c 700 {url}; exit 3", 3), ("kill -9 $$", -9)]
)
def test_a_pipe_whose_program_fails_says_so_and_not_what_it_has_given(
    command, status, first_batch, url
):
    split = SplitConfig(f"pipe:{command.format(url=url)}", dataset_size=2)
    with pytest.raises(DamagedShardError, match=f"program .* ended with status {status};"):
        first_batch({"x": "cls"}, split, allow_unsafe=["pipe"])
