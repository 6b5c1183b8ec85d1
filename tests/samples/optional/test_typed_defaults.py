"""Defaults of optional fields have the type of the values, or are refused."""

import io

import numpy as np
import pytest
import torch

from lightning_shards import DecodeResize
from lightning_shards.errors import ConfigError
from tests.samples.optional.lacking_shards import LACKING, rows

MASKS = {
    "array": np.full((1, 4, 4), 255, np.uint8),
    "floats": torch.full((1, 4, 4), 255.0),
    "list": [[[255] * 4] * 4],
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_default_of_an_image_of_another_type_makes_tensors(make_module, reader, kind, batch_size):
    module = make_module(reader, defaults={"mask": MASKS[kind]}, batch_size=batch_size)
    masks, kinds = rows(module, "mask")
    assert set(kinds) == {torch.Tensor}
    assert {mask.dtype for mask in masks.values()} == {torch.uint8}
    assert {n for n, mask in masks.items() if mask.min() == 255} == LACKING


def all_of_one_type(mask):
    assert isinstance(mask, torch.Tensor)
    return mask


def all_arrays(mask):
    assert isinstance(mask, np.ndarray)
    return mask


all_of_one_type.deterministic = all_arrays.deterministic = all_arrays.takes_arrays = True


@pytest.mark.parametrize("transform", [all_of_one_type, all_arrays])
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_a_transform_gets_a_default_as_it_gets_pixels(make_module, reader, transform, kind):
    mask = MASKS["array"] if kind == "array" else torch.as_tensor(MASKS["array"])
    module = make_module(reader, defaults={"mask": mask}, transforms={"mask": transform})
    assert set(rows(module, "mask")[1]) == {torch.Tensor}


BLANKS = {
    "array": np.zeros((3, 2, 2), np.uint8),
    "tensor": torch.zeros(3, 2, 2, dtype=torch.uint8),
}
RESIZED = {"transforms": {"mask": DecodeResize(size=2)}, "decode": {"image": "gray"}}


@pytest.mark.parametrize("kind", BLANKS)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_crop_and_a_default_make_tensors(make_module, reader, kind, batch_size):
    settings = {"defaults": {"mask": BLANKS[kind]}, "batch_size": batch_size} | RESIZED
    masks, kinds = rows(make_module(reader, **settings), "mask")
    assert set(kinds) == {torch.Tensor}
    assert {mask.dtype for mask in masks.values()} == {torch.uint8}
    assert masks[4].sum() == 0 < masks[3].sum()


def test_a_default_of_a_decoding_transform_of_the_user_is_left_alone(make_module, reader):
    def size(data):
        return len(data)

    size.takes_bytes = size.deterministic = True
    settings = RESIZED | {"transforms": {"mask": size}}
    values, _ = rows(make_module(reader, defaults={"mask": -1}, **settings), "mask")
    assert {number for number, value in values.items() if value == -1} == LACKING


TYPED = {
    "int": (b"7", 2.0, torch.int64),
    "json_float64": (b"2.5", 0, torch.float64),
    "json_int64": (b"[2, 3]", torch.tensor([1.0, 2.0]), torch.int64),
    "float32": (np.ones(2, np.float32).tobytes(), [0, 0.1], torch.float32),
    "uint8": (bytes(2), np.array([1.0, 255.0]), torch.uint8),
}


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "default", [[1.5, 2.5], np.array([1.5, 2.5]), torch.tensor([1.5, 2.5]).double()]
)
def test_a_default_of_npy_is_an_array_like_the_others(make_valued, reader, default):
    data = npy(np.array([3.5, 4.5]))
    module = make_valued(reader, [data] * 3, "npy", default, batch_size=2)
    values = [batch["value"] for batch in module.loader("train")]
    assert {(type(value), value.dtype) for value in values} == {(torch.Tensor, torch.float64)}
    assert torch.cat(values).tolist() == [[1.5, 2.5]] * 3 + [[3.5, 4.5]] * 3


@pytest.mark.parametrize("decoder", TYPED)
def test_a_default_has_the_type_of_the_values(make_valued, reader, decoder):
    """Batches without a value, with values alone, and (of two samples) with either."""
    data, default, dtype = TYPED[decoder]
    module = make_valued(reader, [data] * 3, decoder, default, batch_size=2)
    values = [batch["value"] for batch in module.loader("train")]
    assert [value.dtype for value in values] == [dtype] * 3
    assert values[0][0].tolist() == torch.as_tensor(default).to(dtype).tolist()


@pytest.mark.parametrize(
    ("decoder", "default", "values"),
    [
        ("int", 0.5, "int64;"),
        ("int", "none", "int64;"),
        ("uint8", [256], "uint8 of 1 dimension;"),
        ("float32", [[1.0], [2.0, 3.0]], "float32 of 1 dimension;"),
        ("rgb", 0, "uint8 of 3 dimensions;"),
        ("json_int64", 0.5, "int64; give"),
    ],
)
def test_a_default_that_would_lose_something_is_refused(make_valued, decoder, default, values):
    message = f"defaults gives .* for 'value', whose values are {values}.*leave it out"
    with pytest.raises(ConfigError, match=message):
        make_valued("indexed", [b""] * 3, decoder, default)
