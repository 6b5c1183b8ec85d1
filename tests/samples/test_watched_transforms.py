"""A transform for which no generator is seeded is refused if it draws from one of the process."""

import itertools
import random

import numpy as np
import pytest
import torch

from lightning_shards import SplitConfig
from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Place

SEEDS = itertools.count(3)
DRAWS = {
    "python": random.random,
    "numpy": np.random.rand,
    "torch": lambda: torch.rand(1),
    "a seed": lambda: torch.manual_seed(next(SEEDS)),
}


def keyed(draw):
    def transform(value, rng):
        rng.random()
        draw()
        return value

    return transform


def deterministic(draw):
    def transform(value):
        draw()
        return value

    transform.deterministic = True
    return transform


@pytest.fixture(params=["stream", "indexed"])
def reader(request):
    return request.param


@pytest.fixture
def first_sample(reader, make_module, pack_shards):
    def first(max_bad=None, **settings):
        bad = {} if max_bad is None else {"on_bad_sample": "substitute", "max_bad": max_bad}
        split = SplitConfig(pack_shards([5, 4]), reader=reader, sampling="shuffled", **bad)
        return make_module(split, **settings).source("train").first_sample(Place())

    return first


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize(
    ("make", "remedy"), [(keyed, "parameter `rng`"), (deterministic, "attribute `deterministic`")]
)
@pytest.mark.parametrize("max_bad", [None, 5])
def test_a_draw_from_the_whole_process_is_refused(first_sample, make, remedy, draw, max_bad):
    transform = make(draw)
    for given, called in (
        ({"transforms": {"label": transform}}, "the transform of field 'label'"),
        ({"sample_transforms": [transform]}, r"sample_transforms\[0\], which is transform"),
    ):
        with pytest.raises(
            ConfigError, match=rf"^{called},? has the {remedy}, and it drew .*leave"
        ):
            first_sample(max_bad, **given)


@pytest.mark.parametrize("key", ["label", ".cls"])
def test_a_deterministic_decoder_that_draws_is_refused(first_sample, key):
    with pytest.raises(
        ConfigError, match=r"the decoder of 'label' has the attribute `determ.* drew"
    ):
        first_sample(decode={key: deterministic(random.random)})


def unkeyed(value):
    random.random()
    return value


def forked(value, rng):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        torch.rand(1)
    return value


@pytest.mark.parametrize(
    "transform", [unkeyed, forked, keyed(int), deterministic(int)], ids=["un", "fork", "key", "det"]
)
def test_what_can_be_repeated_is_taken(first_sample, transform):
    first_sample(transforms={"label": transform}, sample_transforms=[transform])
    if transform is not forked and transform.__code__.co_argcount == 1:
        first_sample(decode={"label": transform}, fields={"label": "cls"}, collate_fn=list)
