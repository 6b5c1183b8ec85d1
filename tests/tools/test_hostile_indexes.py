"""Whatever stands where an index should be: the tools take it, or say what is wrong at once."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings

from lightning_shards.dataprep.indexes.cards import write_card
from lightning_shards.dataprep.indexes.index_files import index_from_file
from lightning_shards.dataprep.indexes.indexing import write_index
from lightning_shards.dataprep.indexes.wanted_files import IndexFiles
from lightning_shards.dataprep.inspection.check import check_shards
from lightning_shards.dataprep.inspection.survey import survey
from lightning_shards.errors import ConfigError, FileAccessError, ShardError
from lightning_shards.shards.private_files import CacheFolder
from tests.shards.counts.test_hostile_files import CONTENTS, KINDS


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_what_the_tools_read_is_refused_unless_it_is_a_file(write_shards, tmp_path, make):
    urls = write_shards([3])
    make(tmp_path / "wids.json")
    make(tmp_path / "README.md")
    found = survey(urls, cache=CacheFolder(tmp_path / "cache"))
    for use in (
        lambda: write_index(found, IndexFiles(CacheFolder(tmp_path / "cache"))),
        lambda: check_shards(urls, cache=CacheFolder(tmp_path / "cache")),
        lambda: index_from_file(tmp_path / "wids.json"),
        lambda: write_card(tmp_path, {"train": ["000.tar"]}, {"000.tar": 3}),
    ):
        with pytest.raises(FileAccessError, match="put a regular file there"):
            use()


def test_an_index_of_2_gb_is_no_plan(tmp_path):
    with (tmp_path / "wids.json").open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(FileAccessError, match=r"more than the 268,435,456 .*; remake it"):
        index_from_file(tmp_path / "wids.json")


def test_a_file_that_is_no_json_is_no_plan(tmp_path):
    (tmp_path / "wids.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"wids\.json is no JSON .*; name a wids JSON"):
        index_from_file(tmp_path / "wids.json")


@pytest.fixture(scope="module")
def place(tmp_path_factory, write_tar):
    """A folder with two shards of three and four samples."""
    folder = tmp_path_factory.mktemp("hostile") / "data"
    folder.mkdir()
    for shard, samples in enumerate((3, 4)):
        members = [(f"{shard}-{sample}.cls", b"1") for sample in range(samples)]
        write_tar(folder / f"{shard:03d}.tar", members)
    return folder


@settings(max_examples=50)
@given(content=CONTENTS)
def test_the_tools_take_json_of_any_shape_or_say_what_is_wrong(place, content):
    cache = CacheFolder(place / "cache")
    urls = [str(place / "000.tar"), str(place / "001.tar")]
    for name in ("wids.json", "sizes.json"):
        (place / name).write_text(json.dumps(content))
    found = survey(urls, cache=cache)
    files = IndexFiles(cache, ("wids", "sizes"))
    for use in (
        lambda: index_from_file(place / "wids.json"),
        lambda: check_shards(urls, cache=cache),
        lambda: write_index(found, files),
    ):
        with suppress(ShardError):
            use()
    for name in ("wids.json", "sizes.json"):
        (place / name).unlink()
