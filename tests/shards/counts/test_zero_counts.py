"""A count of 0 is never believed where the shard can be asked, whoever wrote it."""

import json
from pathlib import Path

import numpy as np
import pytest

from lightning_shards.shards.counts import _keep_entries
from lightning_shards.shards.files import stamp_of
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore, write_table


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
def test_a_shard_that_is_wrongly_said_to_be_empty_is_counted(write_shards, load, tmp_path, write):
    urls = write_shards([3, 4])
    write(tmp_path, 0)
    assert load(urls).counts.tolist() == [3, 4]


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
