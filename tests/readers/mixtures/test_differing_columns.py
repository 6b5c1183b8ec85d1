"""Fields that components decode in different ways: what is decoded for several batches at once."""

import io
import json
from itertools import islice

import numpy as np
import pytest
from webdataset.writer import TarWriter

from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers import batches as making
from lightning_shards.readers import indexed
from tests.mixed_shards import module_of

SAMPLES, SIZE = 128, 8
ARRAYS = {"values": "npy"}
RAW = {"fields": {"values": "bin"}, "decode": {"values": "float32"}}


def as_npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def pack(folder, name, members):
    """One shard: sample n has the member that `members` gives of n, by its suffix."""
    path = folder / f"{name}.tar"
    with TarWriter(str(path)) as writer:
        for number in range(SAMPLES):
            given = {suffix: data for suffix, data in members(number).items() if data is not None}
            writer.write({"__key__": f"{name}{number:03d}", **given})
    return str(path)


def arrays_of(number, dtype="float32"):
    return {"npy": as_npy(np.full(3, number, dtype))}


def raw_of(number):
    return {"bin": np.full(3, -number, "float32").tobytes()}


def mixture(tmp_path, first, second, split=None, **settings):
    """Equal parts of two components, each a shard and its own settings."""
    components = {"first": first, "second": second}
    mix = {name: {"weight": 1} | component for name, component in components.items()}
    own = {"dataset_size": 2 * SAMPLES, "shuffle_block": SAMPLES} | (split or {})
    return module_of(tmp_path, mix, own, fields=ARRAYS, decode={}, **settings)


def batches_of_two_epochs(module):
    source = module.source("train")
    count = 2 * source.epochs.plan(1).steps
    return [
        [
            (name, value if isinstance(value, list) else (value.dtype, value.tobytes()))
            for name, value in made.batch.items()
        ]
        for made in islice(source.batches(Place(), Cursor()), count)
    ]


def refused(*arguments):
    raise AssertionError("a batch is made sample by sample")


def require_equal_by_samples(module, monkeypatch):
    """That batches by fields, of which none was refused, are those made sample by sample."""
    with monkeypatch.context() as patch:
        patch.setattr(making._Epoch, "batch_by_samples", refused)
        by_fields = batches_of_two_epochs(module)
    with monkeypatch.context() as patch:
        patch.setattr(indexed, "can_decode", lambda _: False)
        assert by_fields == batches_of_two_epochs(module)


@pytest.mark.parametrize("batch_size", [1, 5, 8, 200])
def test_rows_decoded_together_are_those_made_one_by_one(tmp_path, monkeypatch, batch_size):
    first = {"urls": pack(tmp_path, "first", arrays_of)}
    second = {"urls": pack(tmp_path, "second", raw_of), **RAW}
    module = mixture(tmp_path, first, second, batch_size=batch_size)
    require_equal_by_samples(module, monkeypatch)


def test_numbers_of_json_have_the_type_that_those_of_their_batch_need(tmp_path, monkeypatch):
    def number_of(number):
        return {"json": json.dumps(number + 0.5 if number % 31 == 0 else number).encode()}

    first = {"urls": pack(tmp_path, "first", number_of), "fields": {"values": "json"}}
    second = {"urls": pack(tmp_path, "second", lambda number: {"npy": as_npy(np.float64(number))})}
    module = mixture(tmp_path, first, second, {"unit": SIZE, "round": 2 * SIZE})
    types = {batch["values"].dtype for batch in module.loader("train")}
    assert len(types) == 2
    require_equal_by_samples(module, monkeypatch)
