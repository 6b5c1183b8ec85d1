"""Balanced classes of remote shards: labels come from a join, and never from the shards."""

import pytest

from lightning_shards.errors import ConfigError
from tests.remote.published import module

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

GIVEN = {"sampling": "resampled", "dataset_size": 3000}


def test_labels_in_remote_shards_are_refused_with_the_bytes_that_they_would_take(
    published_shards, server, tmp_path
):
    with pytest.raises(
        ConfigError, match=r"about [\d,]{5,} bytes in all; take labels from a table"
    ):
        module(published_shards, tmp_path, balance="label", **GIVEN).source("train")
    asked = [each for each in server.asked if each.path.endswith(".tar")]
    assert len(asked) <= 1  # for its size
