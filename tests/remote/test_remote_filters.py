"""Filters of remote shards: by their tables, or, where there are none, by what a stream reads."""

import pytest

from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Place
from lightning_shards.readers.source import batch_keys
from tests.remote.published import batches, module, without_tables

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

THIRD = {"hash_of": "key", "of": 3, "parts": [0]}


@pytest.fixture
def listed(tmp_path):
    (tmp_path / "out.txt").write_text("000001\n#shard-000002.tar:0\n000015\n")
    return str(tmp_path / "out.txt")


@pytest.fixture
def tableless(server, published_shards):
    """The URLs of shards with counts and without tables."""
    without_tables(server)
    return published_shards


def images(shard):
    return shard.has("png") & (shard.sizes("cls") == 1)


FILTERS = {
    "parts": {"exclude": THIRD},
    "few": {"keep": THIRD},
    "predicate": {"keep": images, "exclude": THIRD},
}


@pytest.mark.parametrize("chosen", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_what_is_left_of_remote_shards_is_what_is_left_of_local_ones(
    published_shards, local, tmp_path, reader, chosen
):
    given = {"reader": reader, **chosen}
    remote, own = (module(urls, tmp_path, **given) for urls in (published_shards, local))
    assert batches(remote, epochs=2) == batches(own, epochs=2)
    assert remote.source("train").epochs.samples == own.source("train").epochs.samples < 16


def keys_of(data, epochs=4):
    loader = data.loader("train")
    return [key for _ in range(epochs) for batch in loader for key in batch["__key__"]]


@pytest.mark.parametrize("chosen", ["parts", "few", "list"])
def test_without_tables_a_stream_asks_each_sample(tableless, local, listed, tmp_path, chosen):
    given = {"exclude": listed} if chosen == "list" else FILTERS[chosen]
    left = set(
        keys_of(module(local, tmp_path, sampling="sequential", remainder="balanced", **given), 1)
    )
    own = {"sampling": "resampled", "dataset_size": 16, "shuffle_buffer": 0}
    data = module(tableless, tmp_path, "other", num_workers=1, **given, **own)
    served = keys_of(data, 12)  # the draws go on over the ends of epochs
    assert 0 < len(left) < 16
    assert set(served) == left
    assert len(served) == 12 * 16
    rows = batch_keys(data.source("train"), Place(), 0, range(8), num_workers=1)
    assert [row.key for batch in rows for row in batch] == served[:16]


REFUSED = {
    "exact": ({}, r"sampling='shuffled' of 'train' needs to know how many samples exclude leaves"),
    "no size": (
        {"sampling": "resampled"},
        r"how many samples exclude of 'train' leaves is unknown.*set dataset_size, or make them by",
    ),
    "predicate": (
        {"sampling": "resampled", "dataset_size": 9, "keep": images},
        r"keep of 'train' is .*\.images, which asks the member tables .* keep parts by hash_of",
    ),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_known_without_tables_is_refused(tableless, tmp_path, given, message):
    with pytest.raises(ConfigError, match=message) as error:
        module(tableless, tmp_path, exclude=THIRD, **given).source("train")
    assert "\n" not in str(error.value)
    assert "s3cr3t" not in str(error.value)


def test_labels_in_remote_shards_are_refused_with_the_bytes_that_they_would_take(
    published_shards, server, tmp_path
):
    with pytest.raises(
        ConfigError, match=r"about [\d,]{5,} bytes in all; take labels from a table"
    ):
        module(
            published_shards, tmp_path, balance="label", sampling="resampled", dataset_size=3000
        ).source("train")
    asked = [each for each in server.asked if each.path.endswith(".tar")]
    assert len(asked) <= 1  # for its size
