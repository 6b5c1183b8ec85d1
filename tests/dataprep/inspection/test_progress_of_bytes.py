"""What is indexed from afar is drawn by bytes, also within one shard and from several processes."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from lightning_shards.dataprep.inspection.remote_survey import RemoteScan, survey_remote
from lightning_shards.dataprep.read_positions import read_positions
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import watched_bytes_bar
from lightning_shards.shards.storage.local import LocalStorage
from tests.tools.conftest import write_members

SIZES = (3 << 20, 1 << 20)


@pytest.fixture
def paths(tmp_path):
    return [
        str(write_members(tmp_path / f"{size}.tar", [("0.bin", bytes(size)), ("1.bin", b"1")]))
        for size in SIZES
    ]


@pytest.mark.parametrize(("with_checksums", "most_at_once"), [(True, 1 << 20), (False, 4 << 20)])
def test_a_scan_notes_how_far_it_is_within_a_shard(
    paths, tmp_path, monkeypatch, with_checksums, most_at_once
):
    with read_positions(2) as positions:
        seen = []
        note = type(positions).note

        def noted(*arguments, **settings):
            note(*arguments, **settings)
            seen.append(positions.seen())

        monkeypatch.setattr(type(positions), "note", noted)
        scan = RemoteScan(LocalStorage(), CacheFolder(tmp_path), with_checksums)
        noting = replace(scan, positions=positions)
        found = [noting((number, path, None)) for number, path in enumerate(paths)]
    sizes = [each.size_bytes for each in found]
    read = np.array([each.read for each in seen])
    assert (np.diff(read) >= 0).all()
    assert np.diff(read, prepend=0).max() <= most_at_once
    assert seen[0].total == 2 * sizes[0]  # the other one is taken to be as large
    assert seen[0].done == 0
    assert seen[-1] == (sum(sizes), sum(sizes), 2, 2)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_survey_draws_the_bytes_of_all_processes(paths, tmp_path, capsys, processes):
    scan = RemoteScan(LocalStorage(), CacheFolder(tmp_path / "cache"), with_checksums=True)
    survey_remote(paths, scan, processes=processes, show_progress=True)
    *_, last = capsys.readouterr().err.rstrip("\n").split("\r")
    assert re.match(rf"scanned 2 of 2 shards in {tmp_path}: 100%\|", last)
    assert "4.21M/4.21M" in last


def test_a_bar_looks_by_itself_and_once_more_at_the_end(capsys):
    looks = iter([("begun", 1, 4), ("ended", 4, 4)])
    with watched_bytes_bar(partial(next, looks, ("ended", 4, 4)), show=True):
        pass
    assert "begun:  25%" in capsys.readouterr().err


def test_nothing_is_looked_at_where_nothing_is_drawn(capsys):
    with watched_bytes_bar(lambda: pytest.fail("it was looked at"), show=False):
        pass
    assert capsys.readouterr().err == ""
