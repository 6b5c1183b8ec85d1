"""Whatever stands where an index should be: the tools take it, or say what is wrong at once."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings

from lightning_shards.dataprep.index import IndexOptions, index_shards
from lightning_shards.dataprep.verify import verify_shards
from lightning_shards.errors import FileAccessError, ShardError
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.transport import TransportSettings
from tests.shards.counts.test_hostile_files import CONTENTS, KINDS


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_what_the_tools_read_is_refused_unless_it_is_a_file(write_shards, tmp_path, make):
    urls = write_shards([3])
    make(tmp_path / "wids.json")
    options = IndexOptions(CacheFolder(tmp_path / "cache"), TransportSettings())
    for use in (
        lambda: index_shards(urls, options),
        lambda: verify_shards(urls, cache=options.cache),
    ):
        with pytest.raises(FileAccessError, match="put a regular file there"):
            use()


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
    options = IndexOptions(cache, TransportSettings(), ("wids", "sizes"))
    for use in (
        lambda: verify_shards(urls, cache=cache),
        lambda: index_shards(urls, options),
        lambda: index_shards(urls, replace(options, is_forced=True)),
    ):
        with suppress(ShardError):
            use()
    for name in ("wids.json", "sizes.json"):
        (place / name).unlink()
