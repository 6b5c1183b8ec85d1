"""Balanced classes of remote shards: labels come from a join, and never from the shards."""

from collections import Counter

import pyarrow as pa
import pytest
from pyarrow import parquet

from lightning_shards.errors import ConfigError
from tests.remote.published import COUNTS, module

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


def test_labels_of_a_join_balance_remote_shards(published_shards, tmp_path):
    keys = [f"{number:06d}" for number in range(sum(COUNTS))]
    kinds = ["rare", *["usual"] * (len(keys) - 1)]
    parquet.write_table(pa.table({"__key__": keys, "kind": kinds}), tmp_path / "kinds.parquet")
    join = {"kind": {"table": str(tmp_path / "kinds.parquet"), "column": "kind"}}
    data = module(published_shards, tmp_path, balance="kind", join=join, **GIVEN)
    drawn = Counter(kind for batch in data.loader("train") for kind in batch["kind"])
    assert drawn["rare"] / drawn.total() == pytest.approx(0.5, abs=0.05)
