"""`lightning-shards cache` knows the joins and the filters that runs have made."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from lightning_shards import SplitConfig
from lightning_shards.tools import cache

COUNTS = [3, 2]


@pytest.fixture
def module(make_module, pack_shards, tmp_path):
    keys = [f"{number:06d}" for number in range(sum(COUNTS))]
    parquet.write_table(pa.table({"__key__": keys, "t": keys}), tmp_path / "t.parquet")
    split = SplitConfig(
        pack_shards(COUNTS),
        sampling="sequential",
        remainder="balanced",
        join={"t": str(tmp_path / "t.parquet")},
        exclude={"hash_of": "key", "of": 5, "parts": [0]},
    )
    return make_module(split)


@pytest.fixture
def run(capsys, tmp_path):
    def ran(*arguments):
        cache.main([*arguments, "--cache-dir", str(tmp_path / "cache")])
        return capsys.readouterr().out

    return ran


def texts(module):
    return [text for batch in module.loader("train", rank=0, world_size=1) for text in batch["t"]]


def test_joins_and_filters_are_listed_and_cleared(module, run, tmp_path):
    before = texts(module)
    (joined,) = (tmp_path / "cache" / "joins").glob("*.arrow")
    (kept,) = (tmp_path / "cache" / "kept").glob("*.npy")
    made = json.loads(run("list", "--json"))["made"]
    sizes = {each["path"]: each["bytes"] for each in made}
    assert sizes[str(joined)] == joined.stat().st_size
    assert sizes[str(kept)] == kept.stat().st_size
    assert joined.name in run("list")
    old = joined.with_name(f"{'0' * 24}.arrow")
    old.write_bytes(b"of an earlier run")
    assert json.loads(run("clear", "--json"))["made_bytes"] >= len("of an earlier run")
    assert not old.exists()
    assert list((tmp_path / "cache" / "members").rglob("*.members"))
    assert texts(module) == before
