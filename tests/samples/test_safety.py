"""Shards are data: nothing in them, and no URL, runs a program unless it was switched on."""

import io
import json
import os
import pickle

import pytest
import torch
from webdataset.writer import TarWriter

from lightning_shards import SplitConfig
from lightning_shards.errors import DamagedShardError, SampleError, UnsafeError


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


@pytest.fixture
def url(tmp_path, canary):
    """A shard of two samples with a payload in everything that could be unpickled."""
    saved = io.BytesIO()
    torch.save(Payload(canary), saved)
    poison = pickle.dumps(Payload(canary))
    url = str(tmp_path / "shard.tar")
    with TarWriter(url, encoder=False) as writer:
        for key in ("0", "1"):
            others = {"pkl": poison, "pickle": poison, "pyd": poison, "pth": saved.getvalue()}
            writer.write({"__key__": key, "cls": b"1", **others})
    return url


@pytest.fixture
def first_batch(make_module, url):
    """The first batch that a data module makes of the shard."""

    def load(fields, split=None, **settings):
        module = make_module(split or SplitConfig(url), fields=fields, **settings)
        return next(iter(module.loader("train")))

    return load


@pytest.mark.parametrize("suffix", ["pkl", "cls;PKL", "v1.pkl"])
def test_a_field_that_would_be_unpickled_is_refused(first_batch, canary, suffix):
    with pytest.raises(UnsafeError, match=r"field 'x'.*'pickle'.*allow_unsafe=\['pickle'\]"):
        first_batch({"x": suffix})
    assert not canary.exists()


SWITCH = {"allow_unsafe": ["pickle", "pth", "pipe"], "data": {"allow_unsafe": ["pickle"]}}
WIDS = {"wids_version": 1, "shardlist": [{"url": "shard.tar", "nsamples": 2} | SWITCH]}
BESIDE_SHARDS = {
    "wids.json": WIDS,
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


@pytest.mark.parametrize("decoder", ["pickle", "pth"])
def test_an_unsafe_decoder_is_refused_whatever_the_suffix(first_batch, decoder):
    with pytest.raises(UnsafeError, match=f"'{decoder}'"):
        first_batch({"x": "cls"}, decode={"x": decoder})


def test_pickles_are_loaded_when_they_are_switched_on(first_batch, canary):
    with pytest.raises(SampleError, match="File exists"):  # the payload of the second sample
        first_batch({"x": "pkl"}, allow_unsafe=["pickle"])
    assert canary.exists()


def test_switching_pickles_on_leaves_the_rest_off(first_batch, url):
    with pytest.raises(UnsafeError, match="'pth'"):
        first_batch({"x": "pth"}, allow_unsafe=["pickle"])
    with pytest.raises(UnsafeError, match="shell command"):
        first_batch({"x": "cls"}, SplitConfig(f"pipe:cat {url}"), allow_unsafe=["pickle"])


def test_saved_tensors_are_loaded_without_their_code(first_batch, canary):
    with pytest.raises(SampleError, match="as 'pth' for field 'x'"):
        first_batch({"x": "pth"}, allow_unsafe=["pth"])
    assert not canary.exists()


def test_saved_tensors_are_loaded_when_they_are_switched_on(first_batch, tmp_path):
    saved = io.BytesIO()
    torch.save(torch.arange(3), saved)
    other = str(tmp_path / "tensors.tar")
    with TarWriter(other, encoder=False) as writer:
        for key in ("0", "1"):
            writer.write({"__key__": key, "pth": saved.getvalue()})
    batch = first_batch({"x": "pth"}, SplitConfig(other), allow_unsafe=["pth"])
    assert batch["x"].tolist() == [[0, 1, 2], [0, 1, 2]]


def test_a_pipe_is_refused_by_default(first_batch, canary):
    with pytest.raises(UnsafeError, match=r"run a shell command.*allow_unsafe=\['pipe'\]"):
        first_batch({"x": "cls"}, SplitConfig(f"pipe:mkdir {canary}", dataset_size=2))
    assert not canary.exists()


def test_a_pipe_is_read_when_it_is_switched_on(first_batch, url):
    split = SplitConfig(f"pipe:cat {url}", dataset_size=2)
    assert first_batch({"x": "cls"}, split, allow_unsafe=["pipe"])["x"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("head -c 700 {url}; exit 3", 3),
        ("kill -9 $$", -9),
    ],
)
def test_a_pipe_whose_program_fails_says_so_and_not_what_it_has_given(
    command, status, first_batch, url
):
    split = SplitConfig(f"pipe:{command.format(url=url)}", dataset_size=2)
    with pytest.raises(DamagedShardError, match=f"program .* ended with status {status};"):
        first_batch({"x": "cls"}, split, allow_unsafe=["pipe"])
