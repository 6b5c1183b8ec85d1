"""A count of 0 is never believed where the shard can be asked, whoever wrote it."""

import json
from pathlib import Path

import numpy as np
import pytest

from lightning_shards.shards.counts import _keep_entries
from lightning_shards.shards.files import stamp_of
from lightning_shards.shards.index import load_index
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore, write_table
from tests.readers.test_stream_http import serving


def _json(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def _wids(folder, samples):
    shards = [{"url": "001.tar", "nsamples": samples}]
    _json(folder / "wids.json", {"wids_version": 1, "shardlist": shards})


def _timm(folder, samples):
    split = {"filenames": ["001.tar"], "shard_lengths": [samples]}
    _json(folder / "_info.json", {"splits": {"train": split}})


WRITERS = {
    "sizes.json": lambda folder, samples: _json(folder / "sizes.json", {"001.tar": samples}),
    "wids": _wids,
    "timm": _timm,
    "img2dataset": lambda folder, samples: _json(folder / "001_stats.json", {"successes": samples}),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_shard_that_is_wrongly_said_to_be_empty_is_counted(
    write_shards, load, tmp_path, write, caplog
):
    urls = write_shards([3, 4])
    write(tmp_path, 0)
    assert load(urls).counts.tolist() == [3, 4]
    assert "001" in caplog.text
    assert "remake" in caplog.text


def test_a_length_of_0_for_the_only_shard_is_not_believed(write_shards, load, tmp_path):
    urls = write_shards([3])
    (tmp_path / "__len__").write_text("0")
    assert load(urls).counts.tolist() == [3]


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_shard_that_is_rightly_said_to_be_empty_is_not_scanned(
    write_shards, load, tmp_path, write, forbid_scans
):
    urls = write_shards([3, 0])
    write(tmp_path, 0)
    forbid_scans()
    assert load(urls[1:]).counts.tolist() == [0]


def test_a_cached_count_of_0_is_not_believed(write_shards, load, tmp_path):
    urls = write_shards([3, 4])
    entries = {Path(url).name: [*stamp_of(Path(url)), 0] for url in urls}
    _keep_entries(str(tmp_path), CacheFolder(tmp_path / "cache"), entries)
    assert load(urls).counts.tolist() == [3, 4]


def test_a_member_table_without_samples_is_not_believed(write_shards, tmp_path):
    (url,) = write_shards([3])
    cache = CacheFolder(tmp_path / "cache")
    store = TableStore(cache)
    size, time = Path(url).stat().st_size, Path(url).stat().st_mtime_ns
    none = np.empty(0, np.int64)
    starts = np.zeros(1, np.int64)
    ids = none.astype(np.uint32)
    keys = none.astype(np.uint8)
    empty = MemberTable(keys, starts, starts, none, none, None, ids, (), size, time)
    write_table(cache.sidecar_of(url), empty, cache)
    assert store.table_of(url, expected_samples=3).num_samples == 3


@pytest.mark.parametrize("counts", [[3, 0, 2, 0], [0, 0]])
def test_shards_without_samples_among_others_are_said_once(write_shards, load, counts, caplog):
    urls = write_shards(counts)
    load([*urls, *urls])
    said = [record.getMessage() for record in caplog.records]
    if any(counts):
        (message,) = said
        assert f"2 of 4 shards hold no sample, first {urls[1]}" in message
    else:
        assert said == []


# --- remote shards


@pytest.fixture
def root(write_shards, tmp_path):
    """A server of two shards, the second one empty, both said to be empty."""
    write_shards([3, 0], tmp_path / "served")
    _json(tmp_path / "served" / "sizes.json", {"000.tar": 3, "001.tar": 0})
    with serving(tmp_path / "served") as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


@pytest.mark.network
def test_a_remote_shard_that_begins_with_its_end_marker_is_empty(root, tmp_path):
    shards = load_index([f"{root}/000.tar", f"{root}/001.tar"], cache=CacheFolder(tmp_path))
    assert shards.counts.tolist() == [3, 0]


@pytest.mark.network
def test_a_remote_shard_is_not_believed_to_be_empty_against_its_first_header(
    root, tmp_path, caplog
):
    _json(tmp_path / "served" / "sizes.json", {"000.tar": 0, "001.tar": 0})
    shards = load_index([f"{root}/000.tar?secret", f"{root}/001.tar"], cache=CacheFolder(tmp_path))
    assert shards.counts is None
    assert f"sizes.json is not believed that {root}/000.tar holds no sample" in caplog.text
    assert "secret" not in caplog.text
