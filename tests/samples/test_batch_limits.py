"""A batch whose unpacked values would fill the memory is refused, with the name of the field."""

import gzip
import io
import json
import sys

import numpy as np
import pytest

from lightning_shards import SplitConfig
from lightning_shards.errors import SampleError
from lightning_shards.samples import batch_limits
from lightning_shards.samples.batch_limits import UnpackedCount, memory_of

BATCH = 4
LIMIT = 4 * 2**20
"""Of a batch here; each of the values takes 1.2 to 1.5 MiB."""


def packed_arrays():
    file = io.BytesIO()
    np.savez_compressed(file, a=np.zeros((2, 80_000)))
    return file.getvalue()


VALUES = {
    "txt.gz": gzip.compress(b"a" * 1_300_000),
    "json.gz": gzip.compress(json.dumps([{}] * 20_000).encode()),
    "cbor.gz": gzip.compress(b"\x99\x50\x00" + b"\x80" * 20_480),
    "mp.gz": gzip.compress(b"\xdc\x50\x00" + b"\x80" * 20_480),
    "npz": packed_arrays(),
}


@pytest.fixture(params=["stream", "indexed"])
def reader(request):
    if request.param == "stream":
        pytest.importorskip("torch", reason="webdataset needs torch to read a stream")
    return request.param


@pytest.fixture
def batch_of(write_tar, tmp_path, make_module, reader):
    def batch(suffix, data, **settings):
        url = str(write_tar(tmp_path / "0.tar", [(f"{n}.{suffix}", data) for n in range(BATCH)]))
        split = SplitConfig(url, sampling="sequential", reader=reader)
        module = make_module(split, fields={"x": suffix}, batch_size=BATCH, **settings)
        return next(iter(module.loader("train")))

    return batch


def first(value):
    return value[0]


first.deterministic = True


@pytest.mark.parametrize("collate_fn", [None, list])
@pytest.mark.parametrize("suffix", VALUES)
def test_a_batch_that_unpacks_to_too_much_names_its_field(
    batch_of, monkeypatch, suffix, collate_fn
):
    monkeypatch.setattr(batch_limits, "MAX_BATCH_BYTES", LIMIT)
    with pytest.raises(SampleError, match=r"field 'x' in one batch.* 4194304 bytes.*batch_size"):
        batch_of(suffix, VALUES[suffix], collate_fn=collate_fn)


@pytest.mark.parametrize("suffix", VALUES)
def test_a_batch_that_takes_less_is_made(batch_of, monkeypatch, suffix):
    monkeypatch.setattr(batch_limits, "MAX_BATCH_BYTES", 2 * LIMIT)
    assert len(batch_of(suffix, VALUES[suffix])["x"]) == BATCH


def test_what_a_transform_makes_small_is_not_counted(batch_of, monkeypatch):
    monkeypatch.setattr(batch_limits, "MAX_BATCH_BYTES", LIMIT)
    batch = batch_of("txt.gz", VALUES["txt.gz"], transforms={"x": first})
    assert batch["x"] == ["a"] * BATCH


def test_what_was_not_packed_is_not_counted(batch_of, monkeypatch):
    monkeypatch.setattr(batch_limits, "MAX_BATCH_BYTES", 1)
    assert batch_of("txt", b"abc")["x"] == ["abc"] * BATCH


def test_all_objects_in_a_value_are_counted_once():
    twice = [10.5]
    value = {"a": twice, "b": (twice, "text"), 3: np.zeros(4)}
    parts = [value, "a", "b", 3, twice, 10.5, value["b"], "text"]
    assert memory_of(value) == sum(map(sys.getsizeof, parts)) + 32


@pytest.mark.parametrize("are_objects", [False, True])
def test_a_value_that_holds_itself_many_times_is_counted(are_objects):
    value = []
    value.append(value)
    for _ in range(100):
        value = [value, value]
    UnpackedCount("x", are_objects=are_objects).add(value)
    assert memory_of(value) < 2**14


@pytest.mark.parametrize("kind", [dict, list, lambda: {"a": {}, "b": {}}])
def test_no_value_that_takes_a_mebibyte_passes_for_a_small_one(monkeypatch, kind):
    value = [kind() for _ in range(19_000)]
    assert memory_of(value) > 2**20
    monkeypatch.setattr(batch_limits, "MAX_BATCH_BYTES", 2**20)
    with pytest.raises(SampleError):
        UnpackedCount("x", are_objects=True).add(value)
