"""Joins beside remote shards: the keys come from the member tables beside these."""

import pyarrow as pa
import pytest
from pyarrow import parquet

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError
from tests.shards.remote.published import COUNTS

pytestmark = pytest.mark.network


@pytest.fixture
def table(tmp_path):
    numbers = range(sum(COUNTS))
    columns = {"__key__": [f"{number:06d}" for number in numbers], "number": numbers}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    return str(tmp_path / "t.parquet")


def module(urls, table, tmp_path, num_workers=0):
    return ShardDataModule(
        SplitConfig(urls, sampling="resampled", join={"number": table}),
        fields={"label": "cls"},
        batch_size=2,
        num_workers=num_workers,
        loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_remote_shards_are_joined_as_local_ones(
    published_shards, local, table, tmp_path, num_workers
):
    made = [
        [(batch["__id__"].tolist(), batch["number"].tolist()) for batch in loader]
        for loader in (
            module(published_shards, table, tmp_path, num_workers).loader("train"),
            module(local, table, tmp_path).loader("train"),
        )
    ]
    assert made[0] == made[1]
    assert sum(len(numbers) for _, numbers in made[0]) > 1


def test_shards_without_member_tables_are_not_streamed(published_shards, server, table, tmp_path):
    """Resampled shards would be, by themselves."""
    for path in [path for path in server.objects if path.endswith(".members")]:
        del server.objects[path]
    with pytest.raises(ConfigError, match="the indexed reader needs the member table"):
        module(published_shards, table, tmp_path).source("train")
