"""PadCollate: what it pads and how far, the lengths, and what it refuses."""

import io
import json

import numpy as np
import pytest
import torch

from lightning_shards import LoaderConfig, PadCollate
from lightning_shards.errors import ConfigError, SampleError


def samples(*values, field="x", **others):
    return [
        {field: value} | others | {"__key__": f"k{number}", "__id__": (0, number)}
        for number, value in enumerate(values)
    ]


def padded(*values, **settings):
    return PadCollate(["x"], **settings)(samples(*values))


@pytest.mark.parametrize(
    ("shapes", "settings", "shape", "lengths"),
    [
        (((3,), (5,)), {}, (2, 5), [3, 5]),
        (((8,), (5,)), {"to_multiple": 8}, (2, 8), [8, 5]),
        (((3, 4), (0, 4)), {}, (2, 3, 4), [3, 0]),
        (((0,), (3, 4)), {}, (2, 3, 4), [0, 3]),
        (((1, 20, 30), (2, 40, 10)), {"to_multiple": 4}, (2, 4, 40, 30), [1, 2]),
        (((1, 3), (1, 6)), {"to_multiple": 4, "dim": -1}, (2, 1, 8), [3, 6]),
        (((0,), (0,)), {}, (2, 0), [0, 0]),
    ],
)
@pytest.mark.parametrize("kind", [np.ones, torch.ones], ids=["array", "tensor"])
def test_each_dimension_is_padded_to_the_longest(kind, shapes, settings, shape, lengths):
    values = [kind(size) * 7 for size in shapes]
    made = padded(*values, **settings, value=-1)
    assert (made["x"].shape, made["x"].dtype) == (shape, values[0].dtype)
    assert type(made["x"]) is type(values[0])
    assert (made["x_length"].tolist(), made["x_length"].dtype) == (lengths, np.int64)
    for row, value in zip(made["x"], values, strict=True):
        where = tuple(map(slice, value.shape))
        assert (row[where] == 7).all()
        row[where] = -1
        assert (row == -1).all()


@pytest.mark.parametrize(
    ("values", "expected", "dtype"),
    [
        (([1, 2], [0.5]), [[1, 2], [0.5, 0]], np.float64),
        (([True], [False, True]), [[1, 0], [0, 1]], bool),
        (([], [3]), [[0], [3]], np.int64),
        (([], []), [[], []], np.int64),
        (([[], []], [[1, 2]]), [[[0, 0], [0, 0]], [[1, 2], [0, 0]]], np.int64),
        (([np.ones(2, np.float32)], [np.ones(1, np.float32)]), [[[1, 1]], [[1, 0]]], np.float32),
        ((torch.ones(1), np.ones(2, ">f4")), [[1, 0], [1, 1]], torch.float32),
        (([], torch.ones(2).half()), [[0, 0], [1, 1]], torch.float16),
    ],
)
def test_lists_and_mixed_values_are_padded_as_one_type(values, expected, dtype):
    made = padded(*values)
    assert (made["x"].tolist(), made["x"].dtype) == (expected, dtype)
    assert made["x_length"].tolist() == [len(value) for value in values]


def test_each_field_may_have_a_value_of_its_own():
    rows = [{"ids": [1, 2], "labels": [3, 4]}, {"ids": [5], "labels": [6]}]
    collate = PadCollate(["ids", "labels"], value={"ids": 0, "labels": -100})
    made = collate([row | {"__key__": "k"} for row in rows])
    assert made["ids"].tolist() == [[1, 2], [5, 0]]
    assert made["labels"].tolist() == [[3, 4], [6, -100]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1, 2), r"field 'x' of sample 'k0' is a int that cannot be padded: \(\) int64 and"),
        (
            (np.ones(2), np.ones((2, 2))),
            r"'k1' .*: \(2, 2\) float64 and \(2,\) float64, al",
        ),
        (([], np.ones(2), np.ones(2, np.float32)), r"'k2' .*: \(2,\) float32 and \(2,\) float64"),
        (("ab", "c"), "field 'x' of sample 'k0' is a str that cannot be padded: no numbers"),
        (([1], [2**63 + 1]), r"field 'x' of sample 'k1'.*fit no int64"),
        (([[1], [1, 2]],), "field 'x' of sample 'k0' is a list that .*lists are of one length"),
        ((np.ma.masked_equal([1, 2], 2),), "field 'x' of sample 'k0' is an array with masked"),
    ],
)
def test_values_that_cannot_be_padded_are_named(values, message):
    with pytest.raises(SampleError, match=message):
        padded(*values)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"to_multiple": 0}, "to_multiple must be a whole number of at least 1, got"),
        ({"value": {"y": 0}}, r"value of PadCollate names \['y'\], and its fields are \['x'\]"),
        ({"fields": ["x", "y"]}, r"pads \['x', 'y'\] and .*the samples have \['x', 'z_length'\]"),
        ({"fields": ["x", "z"]}, r"adds \['x_length', 'z_length'\], and the samples have"),
        ({"value": 0.5}, "pads field 'x' with 0.5, which (torch.)?uint8 cannot hold"),
        ({"value": -100}, "pads field 'x' with -100, which (torch.)?uint8 cannot hold; give"),
    ],
)
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["array", "tensor"])
def test_settings_that_cannot_work_are_refused(settings, message, kind):
    values = kind(np.ones(2, np.uint8)), kind(np.ones(1, np.uint8))
    with pytest.raises(ConfigError, match=message):
        PadCollate(**{"fields": ["x"]} | settings)(samples(*values, z_length=1))


def test_floats_are_padded_with_what_they_can_hold():
    rows = samples(np.ones(2, np.float16), np.ones(1, np.float16))
    assert PadCollate(["x"], value=-np.inf)(rows)["x"].tolist() == [[1, 1], [1, -np.inf]]
    assert PadCollate(["x"], value=0.1)(rows)["x"][1, 1] == np.float16(0.1)
    with pytest.raises(ConfigError, match=r"'x' with 1000000000\.0, which float16 cannot hold"):
        PadCollate(["x"], value=1e9)(rows)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture
def boxes(tmp_path, write_tar):
    """A shard of samples with one box more each, from none to four."""
    members = []
    for number in range(5):
        members.append((f"{number}.boxes.npy", npy(np.full((number, 4), number, np.float32))))
        members.append((f"{number}.tokens.json", json.dumps(list(range(number + 1))).encode()))
    return str(write_tar(tmp_path / "boxes.tar", members))


@pytest.mark.parametrize(("reader", "num_workers"), [("indexed", 2), ("stream", 0)])
def test_boxes_and_tokens_are_padded_in_the_workers(boxes, make_module, reader, num_workers):
    split = {"urls": boxes, "sampling": "sequential", "reader": reader, "remainder": "balanced"}
    named = {
        "class_path": "lightning_shards.PadCollate",
        "init_args": {"fields": ["boxes", "tokens"], "to_multiple": 2},
    }
    fork = LoaderConfig(multiprocessing_context="fork")
    module = make_module(
        split,
        fields={"boxes": "boxes.npy", "tokens": "tokens.json"},
        collate_fn=named,
        batch_size=3,
        num_workers=num_workers,
        loader=fork,
    )
    with module.loader("train") as loader:
        first, last = loader
    assert list(first) == [
        "__key__", "boxes", "boxes_length", "tokens", "tokens_length", "__id__", "__weight__"
    ]  # fmt: skip
    assert first["boxes"].shape == (3, 2, 4)
    assert last["boxes"].shape == (2, 4, 4)
    assert last["boxes_length"].tolist() == [3, 4]
    assert last["boxes"].dtype == torch.float32
    assert first["tokens"].tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 2, 0]]
    assert {type(each) for each in [*first.values()][1:]} == {torch.Tensor}
