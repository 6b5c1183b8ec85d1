"""Batches are made without torch, and users get tensors of the same memory."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from batches_without_torch import ARRAYS, LAZY, SAMPLES, digest_of
from PIL import Image

from lightning_shards import DecodeCenterCrop, DecodeResize, SplitConfig
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.samples.tensors import Arena, is_tensor, with_tensors

READERS = pytest.mark.parametrize("reader", ["indexed", "stream"])
SIDES = 12, 10


def png_of(number):
    """Colours that differ in every place and channel."""
    pixels = np.random.default_rng(number).integers(256, size=(*SIDES, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def npy_of(number):
    file = io.BytesIO()
    np.save(file, np.array([number, 0.5, 0.25]))
    return file.getvalue()


def members(spoilt=None):
    for number in range(SAMPLES):
        yield f"{number}.png", b"GIF" if number == spoilt else png_of(number)
        yield f"{number}.npy", npy_of(number)
        yield f"{number}.cls", b"%d" % number


@pytest.fixture(scope="module")
def url(tmp_path_factory, write_tar):
    return str(write_tar(tmp_path_factory.mktemp("shards") / "0.tar", members()))


@pytest.fixture
def load(url, make_module):
    """The loader of a split in file order, of four samples a batch."""

    def loader(transform=None, reader="indexed", shard=url, **split):
        data = make_module(
            SplitConfig(shard, sampling="sequential", reader=reader, **split),
            fields={"image": "png", "label": "cls", "x": "npy"},
            transforms={"image": transform} if transform else {},
            batch_size=4,
        )
        return data.loader("train")

    return loader


def test_a_worker_needs_nothing_remote_and_no_torch_before_a_transform_imports_it(url, tmp_path):
    """Then it is seeded: the arrays are those of a process that had it from the beginning."""
    cache = str(tmp_path)
    expected = {"arrays": digest_of(url, cache, ARRAYS), "lazy": digest_of(url, cache, LAZY)}
    command = [sys.executable, "-m", "tests.programs.batches_without_torch", url, cache]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == expected | {"needless": [], "calls": [True]}


def test_tensors_share_the_memory_of_arrays_and_have_its_strides():
    array = np.arange(24, dtype=np.uint8).reshape(1, 2, 4, 3).transpose(0, 3, 1, 2)
    names, deep, days = np.array(["a"]), [np.zeros(3)], np.zeros(1, "M8[D]")
    batch = with_tensors({"x": array, "names": names, "deep": deep, "days": days})
    assert batch["x"].data_ptr() == array.ctypes.data
    assert batch["x"].stride() == array.strides
    assert (batch["names"], batch["deep"], batch["days"]) == (names, deep, days)
    (made,) = with_tensors((array,))
    assert torch.equal(made, batch["x"])


class Kept:
    """Keeps what it is given."""

    deterministic = True

    def __init__(self, *, takes_arrays):
        self.takes_arrays, self.given = takes_arrays, []

    def __call__(self, image):
        self.given.append(image)
        return image


@READERS
@pytest.mark.parametrize("takes_arrays", [True, False])
def test_pixels_are_what_a_transform_asks_for(load, reader, takes_arrays):
    plain, transform = next(iter(load(reader=reader)))["image"], Kept(takes_arrays=takes_arrays)
    made = next(iter(load(transform, reader)))["image"]
    assert {is_tensor(each) for each in transform.given} == {not takes_arrays}
    assert torch.equal(made, plain)


class Darker(DecodeCenterCrop):
    """A crop of the user's, whose `__call__` is what counts."""

    def __call__(self, data):
        return super().__call__(data) // 2


@READERS
def test_a_class_that_extends_a_crop_keeps_what_it_changed(load, reader):
    settings = {"size": 8, "resize": 9}
    pixels = next(iter(load(DecodeCenterCrop(**settings), reader)))["image"]
    assert torch.equal(next(iter(load(Darker(**settings), reader)))["image"], pixels // 2)


@pytest.mark.parametrize("spoilt", [None, 2])
def test_a_batch_is_made_in_the_memory_that_is_given_for_it(load, tmp_path, write_tar, spoilt):
    """Also where a sample is bad: what was in that memory is in no batch."""
    shard = str(write_tar(tmp_path / "0.tar", members(spoilt)))
    source = load(DecodeResize(size=64), shard=shard, on_bad_sample="substitute", max_bad=1).source
    expected = next(source.batches(Place(), Cursor())).batch
    arena = Arena()
    arena.use(np.full(2**18, 77, np.uint8))
    made = next(source.batches(Place(), Cursor(), arena)).batch
    assert arena.start_of(made["image"].reshape(-1)) is not None
    assert np.array_equal(made["image"], expected["image"])
