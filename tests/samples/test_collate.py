"""One batch: lists first, then tensors, with their types and shapes."""

import numpy as np
import pytest
import torch

from lightning_shards.errors import SampleError
from lightning_shards.samples.collate import Collation
from lightning_shards.samples.tensors import with_tensors


def samples(*values, field="x"):
    """One sample per value, with the keys "k0", "k1" and so on."""
    return [
        {field: value, "__key__": f"k{number}", "__id__": (number, 10 * number), "__url__": "u"}
        for number, value in enumerate(values)
    ]


def collate(rows, fields, weights):
    return Collation().begun(rows, fields, weights, "dict").batch


def column(*values):
    return with_tensors(collate(samples(*values), ["x"], []))["x"]


@pytest.mark.parametrize(
    ("values", "dtype", "shape"),
    [
        ((1, 2), torch.int64, (2,)),
        ((1.5, 2.5), torch.float64, (2,)),
        ((1, 2.5), torch.float64, (2,)),
        ((True, False), torch.bool, (2,)),
        ((np.float32(1), np.float32(2)), torch.float64, (2,)),
        ((torch.zeros(3, 4, dtype=torch.uint8),) * 2, torch.uint8, (2, 3, 4)),
        ((np.zeros((3, 4), np.float32),) * 2, torch.float32, (2, 3, 4)),
        ((torch.zeros(3), np.zeros(3, np.float32)), torch.float32, (2, 3)),
        ((np.zeros(3, ">i4"), torch.zeros(3).int()), torch.int32, (2, 3)),
        ((np.zeros(3, ">i4"),) * 2, torch.int32, (2, 3)),
        ((np.ones(3)[::-1], torch.ones(3).double(), np.ones(3)), torch.float64, (3, 3)),
    ],
)
def test_numbers_and_arrays_become_one_tensor(values, dtype, shape):
    made = column(*values)
    assert (made.dtype, tuple(made.shape)) == (dtype, shape)


@pytest.mark.parametrize(
    "values", [("a", "b"), (b"a", b"b"), ({"a": 1}, {"a": 2}), ([1], [2, 3]), (1, None), (1, "b")]
)
def test_everything_else_stays_a_list(values):
    assert column(*values) == list(values)


def test_lists_come_first_then_tensors_in_the_order_of_the_fields():
    rows = [{"a": 1, "b": "text", "c": torch.zeros(2), "__key__": "k", "__id__": (0, 1)}]
    batch = collate(rows, ["a", "b", "c"], [1])
    assert list(batch) == ["__key__", "b", "a", "c", "__id__", "__weight__"]


@pytest.mark.parametrize(
    ("first", "second", "described"),
    [
        (torch.zeros(1, 4), torch.zeros(1, 5), r"\(1, 4\) torch.float32.*'k0'.*\(1, 5\).*'k1'"),
        (torch.zeros(2), torch.zeros(2).int(), r"\(2,\) torch.float32.*torch.int32 in sample 'k1'"),
        (torch.zeros(2), np.zeros(2), r"\(2,\) torch.float32.*'k0', but \(2,\) float64.*'k1'"),
        (np.zeros(2), np.zeros(3), r"\(2,\) float64 in sample 'k0'.*\(3,\) float64.*'k1'"),
    ],
)
def test_values_that_differ_in_shape_name_both_samples(first, second, described):
    with pytest.raises(SampleError, match=rf"field 'x' does not fit.*{described}.*a transform"):
        collate(samples(first, second), ["x"], [])


@pytest.mark.parametrize("key", ["__key__", "__id__", "x"])
def test_a_key_that_was_dropped_is_an_error(key):
    rows = samples(1, 2)
    del rows[1][key]
    with pytest.raises(SampleError, match=f"has no '{key}' for its batch: a stage"):
        collate(rows, ["x"], [])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1, 2**70), r"field 'x' of sample 'k1' is 1180591620717411303424, and the numbers of"),
        ((1, np.uint64(2**64 - 1)), r"field 'x' of sample 'k1' is 18446744073709551615, and"),
        ((1.5, 10**400), r"field 'x' of sample 'k1' is 1000+, and .* decode it as 'text'"),
        ((np.uint64(1), np.int64(1)), "the numbers of its batch fit no type of torch's"),
        ((np.ones(2, np.longdouble),) * 2, r"\(2,\) float.* in sample 'k0': torch has no float"),
        ((np.ma.masked_equal([1, 2], 2),) * 2, "field 'x' of sample 'k0' is an array with mask"),
        ((torch.ones(2), np.ma.masked_equal(np.ones(2), 1)), "of sample 'k1' is an array with mas"),
    ],
)
def test_numbers_that_fit_no_batch_are_named(values, message):
    with pytest.raises(SampleError, match=message):
        column(*values)
