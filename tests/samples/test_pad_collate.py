"""PadCollate: what it pads and how far, the lengths, and what it refuses."""

import io
import json

import numpy as np
import pytest
import torch
from webdataset.writer import TarWriter

from lightning_shards import LoaderConfig, PadCollate, SplitConfig
from lightning_shards.errors import ConfigError, SampleError


def samples(*values, field="x", **others):
    return [
        {field: value} | others | {"__key__": f"k{number}", "__id__": (0, number)}
        for number, value in enumerate(values)
    ]


def padded(*values, **settings):
    return PadCollate(["x"], **settings)(samples(*values))


@pytest.mark.parametrize(
    ("shapes", "to_multiple", "shape", "lengths"),
    [
        (((3,), (5,)), 1, (2, 5), [3, 5]),
        (((3,), (5,)), 8, (2, 8), [3, 5]),
        (((8,), (5,)), 8, (2, 8), [8, 5]),
        (((3, 4), (0, 4)), 1, (2, 3, 4), [3, 0]),
        (((1, 20, 30), (2, 40, 10)), 4, (2, 4, 40, 30), [1, 2]),
        (((0, 4), (0, 4)), 1, (2, 0, 4), [0, 0]),
        (((5,),), 4, (1, 8), [5]),
    ],
)
@pytest.mark.parametrize("kind", [np.ones, torch.ones], ids=["array", "tensor"])
def test_each_dimension_is_padded_to_the_longest(kind, shapes, to_multiple, shape, lengths):
    values = [kind(size) * 7 for size in shapes]
    made = padded(*values, to_multiple=to_multiple, value=-1)
    assert made["x"].shape == shape
    assert type(made["x"]) is type(values[0])
    assert made["x"].dtype == values[0].dtype
    assert made["x_length"].tolist() == lengths
    assert made["x_length"].dtype == np.int64
    for row, value in zip(made["x"], values, strict=True):
        where = tuple(map(slice, value.shape))
        assert (row[where] == 7).all()
        row[where] = -1
        assert (row == -1).all()


@pytest.mark.parametrize("to_multiple", [1, 4])
def test_lengths_may_be_of_the_last_dimension(to_multiple):
    sounds = np.ones((1, 3)), np.ones((1, 6))
    made = padded(*sounds, dim=-1, to_multiple=to_multiple)
    assert made["x"].shape == (2, 1, 6 if to_multiple == 1 else 8)
    assert made["x_length"].tolist() == [3, 6]


@pytest.mark.parametrize(
    ("values", "expected", "dtype"),
    [
        (([1, 2], [3]), [[1, 2], [3, 0]], np.int64),
        (([1, 2], [0.5]), [[1, 2], [0.5, 0]], np.float64),
        (([1, 2], [-np.inf]), [[1, 2], [-np.inf, 0]], np.float64),
        (([True], [False, True]), [[1, 0], [0, 1]], bool),
        (([], [3]), [[0], [3]], np.int64),
        (([], [0.5]), [[0], [0.5]], np.float64),
        (([1], [np.float32(0.5)]), [[1], [0.5]], np.float64),
        (([[], []], [[1, 2]]), [[[0, 0], [0, 0]], [[1, 2], [0, 0]]], np.int64),
        (([2**53 + 1], [0]), [[2**53 + 1], [0]], np.int64),
        (([np.ones(2, np.float32)], [np.ones(1, np.float32)]), [[[1, 1]], [[1, 0]]], np.float32),
        (([], np.ones((1, 2), np.float32)), [[[0, 0]], [[1, 1]]], np.float32),
        ((np.ones(1, ">f4"), np.ones(2, "<f4")), [[1, 0], [1, 1]], np.float32),
        ((np.ones(1), torch.ones(2, dtype=torch.float64)), [[1, 0], [1, 1]], torch.float64),
        ((torch.ones(1), np.ones(2, ">f4")), [[1, 0], [1, 1]], torch.float32),
        (([], torch.ones(2).half()), [[0, 0], [1, 1]], torch.float16),
        ((torch.ones(2).bfloat16(), []), [[1, 1], [0, 0]], torch.bfloat16),
        (
            ([torch.ones(2).bfloat16()], [torch.ones(1).bfloat16()] * 2),
            [[[1, 1], [0, 0]], [[1, 0], [1, 0]]],
            torch.bfloat16,
        ),
    ],
)
def test_lists_of_numbers_are_padded_as_arrays(values, expected, dtype):
    made = padded(*values)
    assert made["x"].tolist() == expected
    assert made["x"].dtype == dtype
    assert made["x_length"].tolist() == [len(value) for value in values]


@pytest.mark.parametrize(
    ("value", "dtype"), [(0, np.int64), (-100, np.int64), (0.0, np.float64), (False, bool)]
)
@pytest.mark.parametrize("empty", [[], [[], []], ()])
def test_where_all_lists_are_empty_the_value_gives_the_type(value, dtype, empty):
    made = padded(empty, empty, value=value)["x"]
    assert (made.shape, made.dtype) == ((2, *np.shape(empty)), dtype)


@pytest.mark.parametrize("large", [[2**63 + 1], [-(2**63) - 1], [2**70]])
@pytest.mark.parametrize("other", [[1], [], [True]])
def test_whole_numbers_that_fit_no_int64_are_an_error(large, other):
    with pytest.raises(SampleError, match=r"field 'x' of sample 'k1'.*fit no int64"):
        padded(other, large)


def test_each_field_may_have_a_value_of_its_own():
    rows = [{"ids": [1, 2], "labels": [3, 4]}, {"ids": [5], "labels": [6]}]
    collate = PadCollate(["ids", "labels"], value={"ids": 0, "labels": -100})
    made = collate([row | {"__key__": "k"} for row in rows])
    assert made["ids"].tolist() == [[1, 2], [5, 0]]
    assert made["labels"].tolist() == [[3, 4], [6, -100]]


def test_other_fields_are_as_without_it():
    rows = samples([1], [2, 3], number=5, text="t", image=np.zeros((3, 2, 2), np.uint8))
    made = PadCollate(["x"])(rows)
    assert list(made) == ["text", "x", "x_length", "number", "image"]
    assert made["text"] == ["t", "t"]
    assert made["number"].tolist() == [5, 5]
    assert made["image"].shape == (2, 3, 2, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1, 2), r"\(\) int64 in sample 'k0'; PadCollate wants one type and one number of dimens"),
        (
            (np.ones(2), np.ones((2, 2))),
            r"\(2,\) float64 in sample 'k0', but \(2, 2\) float64 in sample 'k1'; PadCollate wants",
        ),
        (
            ([], np.ones(2), np.ones(2, np.float32)),
            r"\(2,\) float64 in sample 'k1', but \(2,\) float32 in sample 'k2'",
        ),
        (("ab", "c"), "field 'x' of sample 'k0' is a str that cannot be padded: no numbers"),
        ((None, [1]), "field 'x' of sample 'k0' is a NoneType that cannot be padded"),
        (
            ([1], [[1], [1, 2]]),
            r"field 'x' of sample 'k1' is a list that cannot be padded: .* are of one length",
        ),
        (([[1], [1, 2]],), "field 'x' of sample 'k0' is a list that .*lists are of one length"),
        (
            ([torch.ones(2), torch.ones(3)],),
            "sample 'k0' is a list that cannot .* got .2. at entry",
        ),
        (
            (np.ones(2, np.float32), torch.ones(1).bfloat16()),
            r"\(2,\) torch.float32 in sample 'k0', but \(1,\) torch.bfloat16 in sample 'k1'; PadC",
        ),
    ],
)
def test_values_that_cannot_be_padded_are_named(values, message):
    with pytest.raises(SampleError, match=message):
        padded(*values)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fields": "x"}, "pads a list of fields, got 'x'"),
        ({"fields": []}, r"pads a list of fields, got \[\]"),
        ({"to_multiple": 0}, "to_multiple of PadCollate must be a whole number of at least 1, got"),
        ({"value": {"y": 0}}, r"value of PadCollate names \['y'\], and its fields are \['x'\]"),
        ({"fields": ["y"]}, r"names the fields \['y'\], and the samples have \['x'\]; name fields"),
        ({"dim": 1}, "dim=1 of PadCollate is no dimension of field 'x', which has 1 dimension;"),
        ({"value": -1}, "pads field 'x' with -1, which uint8 cannot hold"),
        ({"value": 0.5}, "pads field 'x' with 0.5, which uint8 cannot hold"),
        ({"value": "a"}, "pads field 'x' with 'a', which uint8 cannot hold"),
        ({"value": float("nan")}, "pads field 'x' with nan, which uint8 cannot hold"),
    ],
)
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["array", "tensor"])
def test_settings_that_cannot_work_are_refused(settings, message, kind):
    values = np.ones(2, np.uint8), np.ones(1, np.uint8)
    with pytest.raises(ConfigError, match=message.replace("uint8", "(torch.)?uint8")):
        PadCollate(**{"fields": ["x"]} | settings)(samples(*map(kind, values)))


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["array", "tensor"])
def test_floats_are_padded_with_what_they_can_hold(kind):
    rows = samples(kind(np.ones(2, np.float16)), kind(np.ones(1, np.float16)))
    assert PadCollate(["x"], value=-np.inf)(rows)["x"].tolist() == [[1, 1], [1, -np.inf]]
    assert PadCollate(["x"], value=0.1)(rows)["x"][1, 1] == np.float16(0.1)
    with pytest.raises(ConfigError, match=r"'x' with 1000000000\.0, which (torch\.)?float16 c"):
        PadCollate(["x"], value=1e9)(rows)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["array", "tensor"])
def test_an_empty_array_of_one_dimension_is_one_of_any(kind):
    """As `json_float32` makes of the boxes of an image without any."""
    empty, boxes = kind(np.zeros(0, np.float32)), kind(np.ones((2, 4), np.float32))
    made = padded(empty, boxes, empty)
    assert made["x"].tolist() == [[[0] * 4] * 2, [[1] * 4] * 2, [[0] * 4] * 2]
    assert made["x_length"].tolist() == [0, 2, 0]
    assert padded(empty, empty)["x"].shape == (2, 0)


def test_a_field_of_the_name_of_a_length_is_refused():
    with pytest.raises(ConfigError, match=r"adds \['x_length'\], which the samples have already"):
        PadCollate(["x"])(samples([1], [2], x_length=1))


@pytest.fixture
def boxes(tmp_path):
    """Shards of samples with one box more each, from none to four."""
    url = str(tmp_path / "boxes.tar")
    with TarWriter(url) as writer:
        for number in range(5):
            file = io.BytesIO()
            np.save(file, np.full((number, 4), number, np.float32))
            tokens = json.dumps(list(range(number + 1)))
            writer.write(
                {"__key__": f"{number}", "boxes.npy": file.getvalue(), "tokens.json": tokens}
            )
    return url


FIELDS = {"boxes": "boxes.npy", "tokens": "tokens.json"}


@pytest.mark.parametrize("reader", ["indexed", "stream"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_boxes_and_tokens_are_padded_in_the_workers(boxes, make_module, reader, num_workers):
    split = {"urls": boxes, "sampling": "sequential", "reader": reader, "remainder": "balanced"}
    named = {
        "class_path": "lightning_shards.PadCollate",
        "init_args": {"fields": ["boxes", "tokens"], "to_multiple": 2},
    }
    fork = LoaderConfig(multiprocessing_context="fork")
    module = make_module(
        split, fields=FIELDS, collate_fn=named, batch_size=3, num_workers=num_workers, loader=fork
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


def test_ragged_tensors_without_it_are_an_error_that_names_it(boxes, make_module):
    module = make_module(SplitConfig(boxes, sampling="sequential"), fields=FIELDS)
    with pytest.raises(SampleError, match=r"or pad them: collate_fn=PadCollate\(fields=\['boxes'"):
        list(module.loader("train"))
