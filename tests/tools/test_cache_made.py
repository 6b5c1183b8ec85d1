"""`lightning-shards cache` knows the joins and the filters that runs have made."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from lightning_shards import SplitConfig
from lightning_shards.shards.files import new_file
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
    (joined,) = (tmp_path / "cache" / "joins").glob("*.join")
    (kept,) = (tmp_path / "cache" / "kept").glob("*.npy")
    made = json.loads(run("list", "--json"))["made"]
    sizes = {each["path"]: each["bytes"] for files in made.values() for each in files}
    assert sizes[str(joined)] == joined.stat().st_size
    assert sizes[str(kept)] == kept.stat().st_size
    shown = run("list")
    assert joined.name in shown
    assert kept.name in shown
    run("clear")
    assert not joined.exists()
    assert not kept.exists()
    assert "keeps nothing of remote shards, joins and filters" in run("list")
    assert list((tmp_path / "cache" / "joins").glob("*.lock"))  # a process may hold one
    assert list((tmp_path / "cache" / "members").rglob("*.members"))
    assert texts(module) == before


def test_a_run_goes_on_when_its_joins_and_filters_are_cleared(module, run):
    loader = module.loader("train", rank=0, world_size=1)
    batches = iter(loader)
    first = next(batches)
    run("clear")
    assert len([first, *batches]) == len(loader)


def test_a_file_that_is_being_written_stays(run, tmp_path):
    """And what a killed program left of one goes."""
    for name in ("joins", "kept"):
        path = tmp_path / "cache" / name / "a"
        path.parent.mkdir(parents=True)
        with new_file(path) as file:
            left = path.with_name(f".b.{'0' * 16}.part")
            left.write_bytes(b"left")
            file.write(b"data")
            made = json.loads(run("list", "--json"))["made"]
            assert {each["path"] for of in made.values() for each in of} == {file.name, str(left)}
            assert json.loads(run("clear", "--json"))["made_files"] == 1
            assert not left.exists()
        assert path.read_bytes() == b"data"
        path.unlink()


def test_folders_of_killed_builds_are_cleared(module, run, tmp_path):
    texts(module)
    left = tmp_path / "cache" / "joins" / f"{'a' * 24}.random"
    left.mkdir()
    (left / "pairs-0").write_bytes(bytes(1000))
    assert left.name in run("list")
    run("clear")
    assert not left.exists()
