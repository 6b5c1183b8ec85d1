"""Which predictions become rows, and what is said of those that cannot."""

import numpy as np
import pytest
import torch

from lightning_shards.errors import ConfigError
from lightning_shards.predictions.rows import ColumnType, rows_of, samples_of

BATCH = {
    "__key__": ["a", "b", "c"],
    "__id__": torch.tensor([[0, 1], [0, 2], [5, 0]]),
    "__weight__": torch.tensor([1.0, 0.0, 1.0]),
}


def rows(prediction):
    return rows_of(prediction, samples_of(BATCH))


def test_a_tensor_has_a_row_for_each_sample_that_counts():
    predicted = rows(torch.arange(6, dtype=torch.float16).reshape(3, 2))
    assert predicted.keys == ["a", "c"]
    assert predicted.ids.tolist() == [[0, 1], [5, 0]]
    assert predicted.columns["prediction"].tolist() == [[0, 1], [4, 5]]
    assert predicted.types == {"prediction": ColumnType("float16", 1)}


def test_without_weights_all_samples_count():
    batch = {name: BATCH[name] for name in ("__key__", "__id__")}
    assert len(rows_of(torch.zeros(3), samples_of(batch))) == 3


def test_the_default_device_changes_nothing():
    batch = {"__key__": ["a", "b"], "__id__": [[0, 1], [0, 2]]}
    with torch.device("meta"):
        samples = samples_of(batch)
    assert samples.ids.tolist() == batch["__id__"]
    assert samples.counts.all()


def test_a_dict_has_a_column_for_each_entry():
    predicted = rows(
        {
            "class": torch.tensor([1, 2, 3]),
            "caption": ("x", "y", "z"),
            "score": [0.5, 1, True],
            "loss": [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)],
            "boxes": [torch.zeros(2, 4), torch.zeros(0, 4), torch.ones(1, 4)],
            "tokens": [[1, 2], [3], [4]],
            "mask": np.ones((3, 2, 2), bool),
        }
    )
    assert {name: tuple(kind) for name, kind in predicted.types.items()} == {
        "class": ("int64", 0),
        "caption": ("text", 0),
        "score": ("float64", 0),
        "loss": ("float32", 0),
        "boxes": ("float32", 2),
        "tokens": ("int64", 1),
        "mask": ("bool", 2),
    }
    assert predicted.columns["caption"] == ["x", "z"]
    assert predicted.columns["loss"].tolist() == [1, 3]
    assert [boxes.shape for boxes in predicted.columns["boxes"]] == [(2, 4), (1, 4)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_numbers_that_numpy_lacks_become_float32(dtype):
    given = torch.tensor([1.0, 2.0, -0.5], requires_grad=True).to(dtype)
    column = rows(given).columns["prediction"]
    assert column.dtype == np.float32
    assert column.tolist() == [1, -0.5]


@pytest.mark.parametrize(
    ("prediction", "message"),
    [
        (None, "predict_step returned None for a batch of 3 samples; .* wants a tensor with one"),
        (torch.tensor(1.0), r"returned a tensor of shape \(\) for a batch of 3 samples"),
        (torch.zeros(2, 3), r"returned a tensor of shape \(2, 3\) for a batch of 3 samples"),
        ([1, 2, 3], "returned a list of 3 entries for a batch of 3"),
        ({}, "returned a dict of 0 entries"),
        ("abc", "returned a value of type str"),
        ({"x": torch.zeros(4)}, r"returned a tensor of shape \(4,\) for 'x' for a batch of 3"),
        ({"x": ["a", "b"]}, "returned a list of 2 entries for 'x' for a batch of 3"),
        ({"x": 1.0}, "returned a value of type float for 'x'"),
        ({"x": {"y": 1}}, "returned a dict of 1 entries for 'x'"),
        ({"x": ["a", 1, 2]}, "values for 'x' that no file holds .*: return real numbers"),
        ({"x": [None, None, None]}, "values for 'x' that no file holds .object."),
        ({"x": [[1], [[2]], [3]]}, "entries of 'x' .* int64 of 1 dimensions and int64 of 2 dim"),
        ({"x": [[1, [2]], [3], [4]]}, "values for 'x' that no file holds"),
        ({"x": torch.zeros(3, dtype=torch.complex64)}, "no file holds .complex64."),
        ({"x": torch.zeros(3, 3).to_sparse()}, "no file holds .*dense tensors"),
        ({"x": np.zeros(3, np.longdouble)}, "no file holds"),
        ({"x": [2**70, 1, 1]}, "no file holds"),
        ({"__key__": ["a", "b", "c"]}, "entry '__key__'.* written from the batch"),
        ({1: torch.zeros(3)}, "entry 1; names are texts"),
    ],
)
def test_anything_else_is_refused_with_what_is_wanted(prediction, message):
    with pytest.raises(ConfigError, match=message):
        rows(prediction)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((torch.zeros(3),), "this one is a tuple; set batch_format='dict'"),
        ({"image": 1, "__key__": ["a"]}, r"this one has \['__key__', 'image'\]"),
        (BATCH | {"__key__": ["a"]}, r"1 keys, `__id__` of shape \(3, 2\) .* keep them"),
        (BATCH | {"__weight__": torch.ones(2)}, r"`__weight__` of shape \(2,\): a hook"),
    ],
)
def test_a_batch_that_does_not_say_which_samples_it_holds_is_refused(batch, message):
    with pytest.raises(ConfigError, match=message):
        samples_of(batch)
