"""`lightning-shards cache` knows the joins and the filters that runs have made."""

import pyarrow as pa
from pyarrow import parquet

from lightning_shards import SplitConfig
from lightning_shards.tools import cache


def test_joins_and_filters_are_listed_and_cleared(make_module, pack_shards, run_json, tmp_path):
    urls, table = pack_shards([3, 2]), str(tmp_path / "t.parquet")
    keys = [f"{number:06d}" for number in range(5)]
    parquet.write_table(pa.table({"__key__": keys, "t": keys}), table)
    chosen = {"join": {"t": table}, "exclude": {"hash_of": "key", "of": 5, "parts": [0]}}
    module = make_module(SplitConfig(urls, sampling="sequential", remainder="balanced", **chosen))

    def texts():
        return [text for batch in module.loader("train") for text in batch["t"]]

    def run(action):
        return run_json(cache.main, [action, "--cache-dir", tmp_path / "cache"])[1]

    before = texts()
    (joined,) = (tmp_path / "cache" / "joins").glob("*.arrow")
    (kept,) = (tmp_path / "cache" / "kept").glob("*.npy")
    sizes = {made["path"]: made["bytes"] for made in run("list")["made"]}
    assert sizes[str(joined)] == joined.stat().st_size
    assert sizes[str(kept)] == kept.stat().st_size
    old = joined.with_name(f"{'0' * 24}.arrow")
    old.write_bytes(b"of an earlier run")
    assert run("clear")["made_bytes"] >= len("of an earlier run")
    assert not old.exists()
    assert list((tmp_path / "cache" / "members").rglob("*.members"))
    assert texts() == before
