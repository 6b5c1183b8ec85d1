"""A mixture as one source: what it says of itself, its checkpoints, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lightning_shards import SplitConfig
from lightning_shards.build.reader_choice import choose_reader
from lightning_shards.errors import ConfigError, StateError
from lightning_shards.plan.mixture_schedule import WeightChange
from lightning_shards.shards.index import ShardIndex
from lightning_shards.state import require_resumable
from tests.readers.mixtures.conftest import (
    PAIR,
    with_indexes,
)

# --- checkpoints ----------------------------------------------------------------------------------


def require(source, saved, trained):
    """Check that a run may go on with this source behind so many samples of its first epoch."""
    state = saved.identity() | {"epoch": 0, "samples": trained}
    require_resumable(source.identity(), state, source.describe())


def test_stages_after_the_cursor_may_change_and_those_before_may_not(make_mixture):
    saved = make_mixture(PAIR, changes=[WeightChange({"web": 1}, samples=8)])
    other = make_mixture(PAIR, changes=[WeightChange({"labels": 1}, samples=8)])
    require(other, saved, 8)
    with pytest.raises(StateError, match="from sample 12 of the run on"):
        require(other, saved, 9)


def test_a_component_of_other_shards_is_refused_by_its_name(make_mixture):
    source = make_mixture(PAIR)
    other = with_indexes(source, lambda url: url.replace("labels-", "names-"))
    with pytest.raises(StateError, match="component 'labels' of shards="):
        require(other, source, 4)
    require(other, source, 0)
    require(with_indexes(source, lambda url: f"/elsewhere/{Path(url).name}"), source, 4)


# --- which reader ---------------------------------------------------------------------------------


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


def test_an_indexed_reader_that_cannot_be_names_the_component():
    with pytest.raises(ConfigError, match=r"of 'train\.mix\.staged' .* has stages; use tr"):
        chosen("indexed", a=LOCAL, staged=LOCAL)
    uncounted = ShardIndex(("https://h/b.tar",), None)
    with pytest.raises(ConfigError, match=r"reader='indexed' of 'train\.mix\.b' .* has no counts"):
        chosen("indexed", a=LOCAL, b=uncounted)


@pytest.mark.parametrize(
    ("indexes", "why"),
    [
        ({"a": LOCAL, "b": REMOTE}, r"train\.mix\.b is remote, without member tables"),
        ({"a": LOCAL, "staged": LOCAL}, r"train\.mix\.staged has stages"),
    ],
)
def test_a_mixture_that_is_streamed_cannot_serve_each_sample_once(indexes, why):
    with pytest.raises(ConfigError, match=rf"train\.mix\.a has sampling='shuffled'.*{why}"):
        chosen(sampling="shuffled", **indexes)
    with pytest.raises(ConfigError, match=r"because of reader='stream'"):
        chosen("stream", "shuffled", a=LOCAL)
