"""What describes a folder loses nothing of shards that are not indexed now."""

import json
import sqlite3
from contextlib import closing

import pytest

from lightning_shards.dataprep.indexes.cards import MARK
from lightning_shards.tools import index
from tests.tools.conftest import contents, write_samples

ALL = "wids,sizes,energon,card"


@pytest.fixture
def run(run_here):
    return run_here(index.main)


@pytest.fixture
def data(tmp_path):
    """Two shards of training, and one of validation with keys of its own."""
    write_samples(tmp_path / "data", [2, 1])
    write_samples(tmp_path / "data", [3, 3], "val")
    (tmp_path / "data" / "val-000000.tar").unlink()
    return tmp_path / "data"


@pytest.fixture
def refused(run_json, data, tmp_path, capsys):
    """Runs the tool, which is to write nothing, read nothing, and say this."""

    def call(named, *arguments):
        before = contents(data)
        cache = tmp_path / "unused"
        with pytest.raises(SystemExit) as ended:
            index.main([str(data / named), *arguments, "--cache-dir", str(cache), "--processes=1"])
        assert ended.value.code == 2
        assert contents(data) == before
        assert not cache.exists()
        return capsys.readouterr().err

    return call


def wids(*urls, **fields):
    shards = [{"url": url, "nsamples": 1} for url in urls]
    return {"wids_version": 1, "shardlist": shards} | fields


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (wids("train-000000.tar", "train-000001.tar"), "also indexes 'train-000001.tar', not"),
        (wids("data/train-000001.tar"), "also indexes 'data/train-000001.tar', not"),
        (wids("moved/train-000001.tar"), "also indexes 'moved/train-000001.tar'"),
        (wids("/mnt/train-000000.tar"), "also indexes '/mnt/train-000000.tar'"),
        (wids("https://host/train-000000.tar"), "also indexes 'https://host/train-000000.tar'"),
        (wids("train-000001.tar", base="data"), "also indexes 'train-000001.tar'"),
        (wids("train-000000.tar", base="data"), "is not overwritten: it has 'base'"),
        (wids("train-000000.tar", info={"license": "CC0"}), "not overwritten: it has 'info'"),
        (wids(datasets=[]), "is not overwritten: it has 'datasets'"),
        ({"wids_version": 1, "shardlist": [{"url": "x", "split": "a"}]}, "it has 'split'"),
        ({"batch_size": 3}, "is not overwritten: it is no wids JSON"),
        ([1], "is not overwritten: it is no wids JSON"),
    ],
)
def test_a_wids_json_that_would_lose_something_is_refused(refused, data, content, said):
    (data / "wids.json").write_text(json.dumps(content))
    message = refused("train-000000.tar", "--format", "wids,members")
    assert said in message
    assert "--wids train.json" in message


@pytest.mark.parametrize(
    "content",
    [
        wids("train-000000.tar", "gone.tar"),
        wids("data/train-000000.tar"),
        wids("./train-000000.tar"),
        wids("moved/train-000000.tar"),
        wids("moved/gone.tar"),
        wids(),
    ],
)
def test_a_wids_json_of_these_shards_is_made_again(run, data, content):
    (data / "wids.json").write_text(json.dumps(content))
    assert run(data / "train-000000.tar")[0] == 0
    [entry] = json.loads((data / "wids.json").read_text())["shardlist"]
    assert (entry["url"], entry["nsamples"]) == ("train-000000.tar", 2)


def test_the_path_of_another_folder_s_shard_is_not_taken_for_this_one(refused, data):
    write_samples(data / "more", [1])
    (data / "wids.json").write_text(json.dumps(wids("more/train-000000.tar")))
    assert "also indexes 'more/train-000000.tar'" in refused("train-000000.tar")


@pytest.mark.parametrize("name", ["wids.json", "sizes.json", ".nv-meta/.info.json"])
def test_what_is_no_json_is_not_overwritten(refused, data, name):
    (data / ".nv-meta").mkdir()
    (data / name).write_text("years of work")
    message = refused("*.tar", "--format", ALL)
    assert f"{name} is not overwritten: it is no JSON; move it away first" in message


@pytest.mark.parametrize(
    ("kind", "name", "verb"),
    [("energon", ".nv-meta/.info.json", "counts"), ("card", "README.md", "lists")],
)
def test_what_describes_the_whole_folder_is_not_left_to_one_split(
    run, refused, data, kind, name, verb
):
    """Another name of the wids JSON makes no room for these."""
    assert run(data / "train-*.tar", "--wids", "train.json", "--format", f"wids,{kind}")[0] == 0
    message = refused("val-*.tar", "--wids", "val.json", "--format", f"wids,{kind}")
    assert f"{name} also {verb} 'train-000000.tar' and 1 more" in message
    assert f"or leave out the format {kind}" in message
    assert run(data / "val-*.tar", "--wids", "val.json")[0] == 0
    (data / "train-000001.tar").unlink()
    assert run(data / "*.tar", "--wids", "all.json", "--format", f"wids,{kind}")[0] == 0


def test_energon_s_splits_are_renewed_until_they_are_edited(run, data):
    path = data / ".nv-meta" / "split.yaml"
    shards = {"train": ["train-000000.tar", "train-000001.tar"]}
    run(data / "train-*.tar", "--format", "energon")
    assert json.loads(path.read_text())["split_parts"] == shards
    run(data / "*.tar", "--format", "energon")
    everything = shards | {"validation": ["val-000001.tar"]}
    assert json.loads(path.read_text())["split_parts"] == everything
    with closing(sqlite3.connect(data / ".nv-meta" / "index.sqlite")) as base:
        assert base.execute("SELECT count(*) FROM samples").fetchone() == (6,)
    path.write_text("split_parts: {mine: []}")
    run(data / "*.tar", "--format", "energon")
    assert path.read_text() == "split_parts: {mine: []}"


def test_an_energon_index_with_more_is_not_overwritten(refused, data):
    (data / ".nv-meta").mkdir()
    (data / ".nv-meta" / ".info.json").write_text('{"shard_counts": {}, "note": "mine"}')
    assert "it has 'note'; move it away" in refused("*.tar", "--format", "energon")


@pytest.mark.parametrize("edit", ["{}# Mine\n", "{MARK}\nmine"])
def test_a_card_that_was_edited_is_not_overwritten(run, refused, data, edit):
    run(data / "*.tar", "--format", "card")
    path = data / "README.md"
    path.write_text(edit.format(path.read_text(), MARK=MARK))
    assert "README.md is not overwritten: it was written or edited by hand" in refused(
        "*.tar", "--format", "card"
    )


def test_counts_of_other_folders_stay(run, data):
    write_samples(data / "more", [1])
    (data / "sizes.json").write_text('{"more/train-000000.tar": 1, "more/gone.tar": 2}')
    assert run(data / "val-*.tar", "--format", "sizes")[0] == 0
    assert json.loads((data / "sizes.json").read_text()) == {
        "more/train-000000.tar": 1,
        "val-000001.tar": 3,
    }
