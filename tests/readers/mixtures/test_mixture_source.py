"""Which reader a mixture has."""

from dataclasses import replace

import numpy as np
import pytest

from lightning_shards import SplitConfig
from lightning_shards.build.sources import choose_reader
from lightning_shards.errors import ConfigError
from lightning_shards.shards.index import ShardIndex

LOCAL = ShardIndex(("a.tar",), np.array([3]))
REMOTE = ShardIndex(("https://h/b.tar",), np.array([3]))
TABLES = replace(REMOTE, has_tables=True)


def chosen(reader="auto", sampling="resampled", **indexes):
    configs = {
        f"train.mix.{name}": SplitConfig(
            "a.tar", reader=reader, sampling=sampling, stages=[iter] * ("staged" in name)
        )
        for name in indexes
    }
    return choose_reader(configs, list(indexes.values()), is_mixture=True)


def test_a_mixture_is_indexed_where_all_components_can_be():
    assert chosen(a=LOCAL, b=TABLES) == "indexed"
    assert chosen(sampling="shuffled", a=LOCAL, b=TABLES) == "indexed"
    assert chosen(a=LOCAL, b=REMOTE) == "stream"
    assert chosen(a=LOCAL, staged=LOCAL) == "stream"
    assert chosen("stream", a=LOCAL, b=TABLES) == "stream"


UNCOUNTED = ShardIndex(("https://h/b.tar",), None)
ONCE = r"train\.mix\.a has sampling='shuffled'.*"


@pytest.mark.parametrize(
    ("settings", "other", "why"),
    [
        (("indexed",), {"b": UNCOUNTED}, r"reader='indexed' of 'train\.mix\.b' .* has no counts"),
        (("auto", "shuffled"), {"b": REMOTE}, rf"{ONCE}\.b is remote, without member tables"),
        (("auto", "shuffled"), {"staged": LOCAL}, rf"{ONCE}train\.mix\.staged has stages"),
    ],
)
def test_a_reader_that_cannot_be_names_the_component(settings, other, why):
    with pytest.raises(ConfigError, match=why):
        chosen(*settings, a=LOCAL, **other)
