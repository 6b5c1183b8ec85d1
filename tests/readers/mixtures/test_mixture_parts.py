"""Components that differ, fail or end, in one batch and before a fit."""

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_shards.errors import SampleError
from tests.readers.mixtures.conftest import (
    ALONE,
    PAIR,
    START,
    batches,
    first_three,
    not_three,
    rows_of,
)

# --- components that differ -----------------------------------------------------------------------


def as_float(label):
    return torch.tensor(float(label))


def test_tensors_and_numbers_of_one_field_are_refused(make_mixture):
    """They would be a list in some batches, and a tensor in those of one component."""
    source = make_mixture(PAIR, {"labels": {"transforms": {"label": as_float}}}, batch_size=8)
    with pytest.raises(SampleError, match=r"is a tensor .* and a number .*\n.*'web', 'labels'"):
        batches(source, 1)


def test_sample_transforms_may_give_fields_the_same_names(make_mixture):
    own = {"labels": {"fields": {"other": "cls"}, "sample_transforms": (renamed,)}}
    (loaded,) = batches(make_mixture(PAIR, own, batch_size=8), 1)
    assert loaded.batch["label"].shape == (8,)


def renamed(sample):
    return {"label": sample.pop("other")}


# --- bad samples ----------------------------------------------------------------------------------


def test_a_substitute_is_of_the_component_of_the_bad_sample(make_mixture):
    transforms = {"label": not_three}
    source = make_mixture(
        PAIR, {"web": {"transforms": transforms}}, batch_size=8, rounds=40, max_bad=99
    )
    made = batches(source, 20)
    bad = [each for loaded in made for each in loaded.bad]
    assert {each[:2] for each in bad} == {(0, 3), (2, 6)}  # samples 3 and 13 of web
    weights = [loaded.batch["__weight__"] for loaded in made]
    assert sum(weight.size - weight.sum() for weight in weights) == len(bad)
    for loaded in made:
        assert np.bincount(loaded.batch["__component__"]).tolist() == [6, 2]
        assert all((shard < 3) == (number == 0) for number, shard, _ in rows_of(loaded.batch))
        standing = loaded.batch["__component__"][loaded.batch["__weight__"] == 0]
        assert not standing.any()


def test_a_stage_that_ends_a_stream_names_its_component(make_mixture):
    source = make_mixture(PAIR, {"labels": {"stages": (first_three,)}}, batch_size=8, rounds=40)
    with pytest.raises(SampleError, match=r"component 'labels' gave 1 of 2 samples.*stages"):
        batches(source, 20)


# --- opening and closing --------------------------------------------------------------------------


def test_closing_closes_what_all_pipelines_have_open(make_mixture, shards_of, open_files):
    gc.collect()  # what earlier tests left open
    folder = Path(shards_of["web"][0]).parents[1]
    source = make_mixture({"web": 1, "labels": 1, "code": 1}, batch_size=3, rounds=40)
    made = source.batches(ALONE, START)
    next(made)
    assert len(open_files(folder)) >= 2
    made.close()
    assert open_files(folder) == []
