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


def test_folders_of_tables_are_private_all_the_way(sidecar):
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in sidecar.parents[:3]]
    assert modes == [0o700] * 3
    assert stat.S_IMODE(sidecar.stat().st_mode) == 0o600


@pytest.mark.parametrize("method", ["table_of", "kept_table"])
def test_tables_in_a_folder_that_others_may_write_are_refused(path, cache, method):
    cache.root.mkdir()
    cache.root.chmod(0o777)
    with pytest.raises(FileAccessError, match=rf"{cache.root} may be written by other users"):
        getattr(TableStore(cache), method)(path)
    assert not list(cache.root.iterdir())


def test_a_link_in_the_place_of_a_table_is_refused(sidecar, store, path, tmp_path):
    sidecar.rename(tmp_path / "elsewhere")
    sidecar.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileAccessError, match=rf"{sidecar} is a link"):
        store.table_of(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_table_that_is_no_regular_file_is_refused(sidecar, store, path, make):
    sidecar.unlink()
    make(sidecar)
    with pytest.raises(FileAccessError, match=r"0\.tar\.members is a (fifo|folder)"):
        store.table_of(path)


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
