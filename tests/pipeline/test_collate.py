"""One batch: lists first, then tensors, with their types and shapes."""

import numpy as np
import pytest
import torch

from lightning_shards.errors import SampleError
from lightning_shards.pipeline.collate import collate


def samples(*values, field="x"):
    """One sample per value, with the keys "k0", "k1" and so on."""
    return [
        {field: value, "__key__": f"k{number}", "__id__": (number, 10 * number), "__url__": "u"}
        for number, value in enumerate(values)
    ]


def column(*values):
    return collate(samples(*values), ["x"], [])["x"]


@pytest.mark.parametrize(
    ("values", "dtype", "shape"),
    [
        ((1, 2), torch.int64, (2,)),
        ((1.5, 2.5), torch.float64, (2,)),
        ((1, 2.5), torch.float64, (2,)),
        ((True, False), torch.bool, (2,)),
        ((np.int32(1), np.int64(2)), torch.int64, (2,)),
        ((np.float32(1), np.float32(2)), torch.float64, (2,)),
        ((torch.zeros(3, 4, dtype=torch.uint8),) * 2, torch.uint8, (2, 3, 4)),
        ((torch.tensor(1.0), torch.tensor(2.0)), torch.float32, (2,)),
        ((np.zeros((3, 4), np.float32),) * 2, torch.float32, (2, 3, 4)),
        ((np.zeros(3, np.uint16),) * 2, torch.uint16, (2, 3)),
        ((np.zeros(0, bool),) * 2, torch.bool, (2, 0)),
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


def test_arrays_of_objects_and_texts_stay_a_list():
    assert isinstance(column(np.array(["a"]), np.array(["b"])), list)
    assert isinstance(column(np.array([None]), np.array([None])), list)


def test_values_keep_their_order():
    assert column(3, 1, 2).tolist() == [3, 1, 2]
    assert column(torch.tensor([3]), torch.tensor([1])).tolist() == [[3], [1]]


def test_lists_come_first_then_tensors_in_the_order_of_the_fields():
    rows = [{"a": 1, "b": "text", "c": torch.zeros(2), "__key__": "k", "__id__": (0, 1)}]
    batch = collate(rows, ["a", "b", "c"], [1])
    assert list(batch) == ["__key__", "b", "a", "c", "__id__", "__weight__"]


def test_ids_and_keys_are_those_of_the_samples():
    batch = collate(samples(1, 2, 3), ["x"], [])
    assert batch["__key__"] == ["k0", "k1", "k2"]
    assert batch["__id__"].tolist() == [[0, 0], [1, 10], [2, 20]]
    assert batch["__id__"].dtype == torch.int64


def test_weights_are_floats():
    weights = collate(samples(1, 2), ["x"], [1, 0])["__weight__"]
    assert (weights.dtype, weights.tolist()) == (torch.float32, [1.0, 0.0])


def test_without_weights_there_is_no_weight():
    assert "__weight__" not in collate(samples(1, 2), ["x"], [])


@pytest.mark.parametrize(
    ("first", "second", "described"),
    [
        (torch.zeros(1, 4), torch.zeros(1, 5), r"\(1, 4\) torch.float32.*'k0'.*\(1, 5\).*'k1'"),
        (torch.zeros(2), torch.zeros(2).int(), r"\(2,\) torch.float32.*torch.int32 in sample 'k1'"),
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
