"""Member tables are believed only where no other user could have written them."""

import os
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_shards.errors import FileAccessError
from lightning_shards.shards.tables import TableStore


@pytest.fixture
def sidecar(path, store, cache):
    store.table_of(path)
    return cache.sidecar_of(path)


PLACES = {"cache": 2, "members": 1, "digest": 0, "table": None}


def place_in(sidecar, name):
    parent = PLACES[name]
    return sidecar if parent is None else sidecar.parents[parent]


def test_folders_of_tables_are_private_all_the_way(sidecar):
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in sidecar.parents[:3]]
    assert modes == [0o700] * 3
    assert stat.S_IMODE(sidecar.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", PLACES)
def test_table_that_others_could_have_written_is_refused(sidecar, store, path, name):
    place = place_in(sidecar, name)
    place.chmod(place.stat().st_mode | 0o022)
    with pytest.raises(FileAccessError, match=rf"{place} may be written by other users"):
        store.table_of(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
@pytest.mark.parametrize("name", PLACES)
def test_table_of_another_user_is_refused(sidecar, store, path, name):
    place = place_in(sidecar, name)
    os.chown(place, 12345, 12345)
    with pytest.raises(FileAccessError, match=rf"{place} belongs to another user \(uid 12345\)"):
        store.table_of(path)


@pytest.mark.parametrize("name", ["members", "digest", "table"])
def test_links_in_the_cache_are_refused(sidecar, store, path, tmp_path, name):
    place = place_in(sidecar, name)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileAccessError, match=rf"{place} is a link"):
        store.table_of(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_table_that_is_no_regular_file_is_refused(sidecar, store, path, make):
    sidecar.unlink()
    make(sidecar)
    with pytest.raises(FileAccessError, match=r"0\.tar\.members is a (fifo|folder)"):
        store.table_of(path)


def test_refused_table_is_not_written_over(sidecar, path, cache):
    before = sidecar.read_bytes()
    sidecar.chmod(0o666)
    with pytest.raises(FileAccessError):
        TableStore(cache, with_crc32=True).table_of(path)
    assert sidecar.read_bytes() == before


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=9), st.booleans())
def test_damaged_table_never_gives_a_wrong_count(sidecar, store, path, caplog, place, data, is_cut):
    before = sidecar.read_bytes()
    place %= len(before)
    rest = b"" if is_cut else before[place + len(data) :]
    sidecar.write_bytes(before[:place] + data + rest)
    is_damaged = sidecar.read_bytes() != before
    caplog.clear()
    table = store.table_of(path)
    assert (table.num_samples, table.key(0), table.find(0, "jpg")[:2]) == (3, "0", (1536, 700))
    assert ("is made again" in caplog.text) == is_damaged
