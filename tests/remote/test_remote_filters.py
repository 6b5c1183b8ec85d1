"""Filters of remote shards, by their member tables."""

import pytest

from lightning_shards.errors import ConfigError
from tests.remote.published import batches, module, without_tables

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

THIRD = {"hash_of": "key", "of": 3, "parts": [0]}


def images(shard):
    return shard.has("png") & (shard.sizes("cls") == 1)


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_what_is_left_of_remote_shards_is_what_is_left_of_local_ones(
    published_shards, local, tmp_path, reader
):
    given = {"reader": reader, "keep": images, "exclude": THIRD}
    remote, own = (module(urls, tmp_path, **given) for urls in (published_shards, local))
    assert batches(remote, epochs=2) == batches(own, epochs=2)
    assert remote.source("train").epochs.samples == own.source("train").epochs.samples < 16


@pytest.mark.parametrize("given", [{}, {"sampling": "resampled", "dataset_size": 9}])
def test_a_filter_without_tables_is_refused(published_shards, server, tmp_path, given):
    without_tables(server)
    message = r"exclude of 'train' needs the member tables .* has no member table .*; make them by "
    with pytest.raises(ConfigError, match=message) as error:
        module(published_shards, tmp_path, exclude=THIRD, **given).source("train")
    assert "\n" not in str(error.value)
    assert "s3cr3t" not in str(error.value)


def test_labels_in_remote_shards_are_refused(published_shards, server, tmp_path):
    given = {"balance": "label", "sampling": "resampled", "dataset_size": 3000}
    with pytest.raises(ConfigError, match=r"of 3 remote shards, first .*; take labels from a tabl"):
        module(published_shards, tmp_path, **given).source("train")
    assert not [each for each in server.asked if each.path.endswith(".tar")]
