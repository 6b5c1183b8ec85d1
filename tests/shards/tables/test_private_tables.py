"""Member tables are believed only where no other user could have written them."""

import os
import stat

import pytest

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
