"""Whatever stands where an index should be: counts, or an error of ours at once."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_shards.errors import FileAccessError, ShardError
from lightning_shards.shards import beside
from lightning_shards.shards.index import load_index
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import expand_urls

# --- no regular files


def _socket(path):
    """A socket; its path may have about a hundred bytes, so it is made where the program is."""
    before = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(before)


KINDS = {"a fifo": os.mkfifo, "a folder": os.mkdir, "a socket": _socket}
NAMES = ["sizes.json", "wids.json", "_info.json", "000_stats.json", "__len__"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("kind", "make"), KINDS.items(), ids=KINDS)
def test_an_index_that_is_no_file_is_an_error_at_once(
    write_shards, load, tmp_path, name, kind, make
):
    urls = write_shards([3])
    make(tmp_path / name)
    with pytest.raises(FileAccessError, match=f"{name} is {kind}; put a regular file there"):
        load(urls)


@pytest.mark.parametrize(("kind", "make"), KINDS.items(), ids=KINDS)
def test_a_shard_that_is_no_file_is_an_error_at_once(tmp_path, load, kind, make):
    make(tmp_path / "000.tar")
    with pytest.raises(ShardError, match=rf"000\.tar is {kind}; "):
        load(expand_urls(f"{tmp_path}/000.tar"))


@pytest.mark.parametrize(("kind", "make"), KINDS.items(), ids=KINDS)
def test_a_cache_that_is_no_file_is_an_error_at_once(write_shards, load, tmp_path, kind, make):
    urls = write_shards([3])
    load(urls)
    cache = CacheFolder(tmp_path / "cache")
    store = TableStore(cache)
    store.table_of(urls[0])
    for path in [*(tmp_path / "cache").glob("counts-*"), cache.sidecar_of(urls[0])]:
        path.unlink()
        make(path)
    for use in (lambda: load(urls), lambda: store.table_of(urls[0])):
        with pytest.raises(FileAccessError, match=f"is {kind}; put a regular file there"):
            use()


def test_a_link_to_nowhere_is_no_index(write_shards, load, tmp_path):
    urls = write_shards([3])
    for name in NAMES:
        (tmp_path / name).symlink_to("nowhere")
    assert load(urls).counts.tolist() == [3]


@pytest.mark.parametrize("name", ["sizes.json", "000_stats.json"])
def test_an_index_of_2_gb_is_passed_over_unread(write_shards, load, tmp_path, caplog, name):
    urls = write_shards([3])
    with (tmp_path / name).open("wb") as file:
        file.truncate(2**31)  # sparse: it takes no space
    assert load(urls).counts.tolist() == [3]
    message = f"{name} has 2,147,483,648 bytes, more than the 268,435,456 that such a file may have"
    assert message in caplog.text
    assert "remake it" in caplog.text


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read all files")
def test_an_index_that_may_not_be_read_is_passed_over(write_shards, load, tmp_path, caplog):
    urls = write_shards([3])
    (tmp_path / "sizes.json").write_text('{"000.tar": 4}')
    (tmp_path / "sizes.json").chmod(0)
    assert load(urls).counts.tolist() == [3]
    assert "give this user the right to read it" in caplog.text


def test_a_folder_that_may_not_be_listed_has_no_index(write_shards, load, monkeypatch, caplog):
    urls = write_shards([3])

    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert load(urls).counts.tolist() == [3]
    assert "Permission denied" in caplog.text


# --- JSON of any shape

WORDS = ["wids_version", "shardlist", "url", "nsamples", "filesize", "md5sum", "base", "splits"]
WORDS += ["filenames", "shard_lengths", "successes", "version", "counts", "folder"]
WORDS += ["000.tar", "001.tar", "x/000.tar", "..", "", "a\0b", "n" * 300, "\udcff"]
VALUES = st.recursive(
    st.sampled_from(
        [
            None,
            True,
            False,
            0,
            1,
            3,
            -1,
            1 << 39,
            1 << 63,
            10**400,
            1.5,
            float("nan"),
            1e308,
            *WORDS,
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=12,
)
ENTRIES = st.dictionaries(st.sampled_from(["url", "nsamples", "filesize", "md5sum"]), VALUES)
WIDS = st.fixed_dictionaries(
    {"wids_version": st.just(1), "shardlist": st.lists(ENTRIES, max_size=3) | VALUES},
    optional={"base": VALUES},
)
SPLITS = st.fixed_dictionaries({"filenames": VALUES, "shard_lengths": VALUES})
INFO = st.fixed_dictionaries(
    {"splits": st.dictionaries(st.sampled_from(WORDS), SPLITS | VALUES) | VALUES}
)
CONTENTS = VALUES | WIDS | INFO


@pytest.fixture(scope="module")
def place(tmp_path_factory, write_tar):
    """A folder with two shards of three and four samples."""
    folder = tmp_path_factory.mktemp("hostile") / "data"
    folder.mkdir()
    for shard, samples in enumerate((3, 4)):
        members = [(f"{shard}-{sample}.cls", b"1") for sample in range(samples)]
        write_tar(folder / f"{shard:03d}.tar", members)
    return folder


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("json")])
@settings(max_examples=50)
@given(content=CONTENTS)
def test_json_of_any_shape_gives_counts_or_an_error_of_ours(place, name, content):
    path = place / name
    path.write_text(json.dumps(content))
    urls = [str(place / "000.tar"), str(place / "001.tar")]
    try:
        assert len(load_index(urls, cache=CacheFolder(place / "cache")).counts) == 2
    except ShardError:
        pass
    finally:
        path.unlink()


@settings(max_examples=50)
@given(content=CONTENTS)
def test_a_cache_of_any_shape_is_scanned_again(place, content):
    cache = place / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    url = str(place / "000.tar")
    load_index([url], cache=CacheFolder(cache))
    (cached,) = cache.iterdir()
    if isinstance(content, dict):
        content = {"version": 1, "folder": str(place)} | content
    cached.write_text(json.dumps(content))
    assert load_index([url], cache=CacheFolder(cache)).counts.tolist() == [3]


@given(st.binary(max_size=80))
def test_bytes_of_any_kind_give_counts_or_an_error_of_ours(place, data):
    for name in ("sizes.json", "000_stats.json", "__len__"):
        (place / name).write_bytes(data)
    try:
        assert (
            len(load_index([str(place / "000.tar")], cache=CacheFolder(place / "cache")).counts)
            == 1
        )
    except ShardError:
        pass
    finally:
        for name in ("sizes.json", "000_stats.json", "__len__"):
            (place / name).unlink()


def test_the_limit_lets_an_index_of_a_million_shards_pass():
    entry = {"url": "train-000000.tar", "md5sum": "0" * 32, "nsamples": 10**5, "filesize": 10**10}
    assert 10**6 * len(json.dumps(entry, indent=1)) < beside.MAX_INDEX_BYTES
