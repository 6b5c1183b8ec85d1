"""The cache of pieces, as one process or two see it: what is kept, dropped and refused."""

import pickle

import pytest
from cached_bytes import (
    FILE,
    bytes_of,
    disk_bytes,
    is_kept,
    is_there,
    make_cache,
    make_need,
    piece_number,
)

from lightning_shards.errors import DamagedShardError, StorageError
from lightning_shards.remote.cache import clear_pieces, list_pieces
from lightning_shards.shards.files import CacheFolder

PIECE = piece_number(3)


@pytest.fixture
def folder(tmp_path):
    """The user's cache folder."""
    return tmp_path / "cache"


@pytest.fixture
def cache(folder):
    """A cache with room for ten pieces."""
    cache = make_cache(folder, make_need(10))
    yield cache
    cache.close()


def no_chunks():
    raise AssertionError("it was to be in the cache, or there is no room for it")
    yield


def test_what_was_loaded_is_there_for_all_processes(cache, folder):
    assert not is_there(cache, PIECE)
    assert is_kept(cache, PIECE)
    other = pickle.loads(pickle.dumps(cache))
    for reader in (cache, other, make_cache(folder, make_need(10), "another")):
        assert reader.load(PIECE, no_chunks())
        assert is_there(reader, PIECE)
        reader.close()
        with pytest.raises(StorageError, match="was closed"):  # of a thread that still fetches
            reader.load(PIECE, no_chunks())
    assert list_pieces(CacheFolder(folder))[0]["open_runs"] == 0


def test_folders_and_files_are_private(cache, folder):
    assert is_kept(cache, PIECE)
    made = [folder, *folder.rglob("*")]
    assert {oct(path.stat().st_mode & 0o777) for path in made if path.is_dir()} == {"0o700"}
    assert {oct(path.stat().st_mode & 0o777) for path in made if path.is_file()} == {"0o600"}


def test_another_number_of_bytes_is_refused(cache, folder):
    with pytest.raises(
        DamagedShardError, match=r"999 bytes were fetched of s3://bucket/0.tar at b"
    ):
        cache.load(PIECE, [bytes_of(PIECE)[1:]])
    assert disk_bytes(folder) == 0
    assert is_kept(cache, PIECE)


def test_what_a_killed_process_left_is_removed_by_the_next_one(folder):
    cache = make_cache(folder, make_need(10))
    assert is_kept(cache, PIECE)
    part = folder / "pieces" / PIECE.folder / "0-77.part"
    part.write_bytes(b"half")
    run = folder / "pieces" / "runs" / "killed"
    run.write_text('{"data": "a", "limit_bytes": 1, "reads_bytes": 1, "working_set_bytes": 1}')
    cache.close()
    assert is_there(make_cache(folder, make_need(10)), PIECE)
    assert not part.exists()
    assert not run.exists()
    assert disk_bytes(folder) == FILE


def test_the_lowest_limit_of_the_open_runs_holds(folder):
    first, second = (make_cache(folder, make_need(n), f"{n}") for n in (10, 100))
    assert not is_there(first, PIECE)
    assert all(is_kept(second, piece_number(number)) for number in range(40))
    assert disk_bytes(folder) <= 10 * FILE
    first.close()
    assert all(is_kept(second, piece_number(number)) for number in range(40))
    assert disk_bytes(folder) == 40 * FILE


def test_what_is_there_is_listed_and_cleared_but_not_what_is_of_others(folder):
    """Somebody may name a folder as cache_dir that holds a folder `pieces` of another kind."""
    strangers = [folder / "pieces" / name for name in ("photos/1.jpg", "notes.txt", "a" * 64)]
    for stranger in strangers:
        stranger.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        stranger.write_bytes(b"x" * 10 * FILE)
    for name in ("runs/folder", f"{PIECE.folder}/0-5"):
        (folder / "pieces" / name).mkdir(mode=0o700, parents=True)
    cache, user = make_cache(folder, make_need(4)), CacheFolder(folder)
    assert all(is_kept(cache, piece_number(number)) for number in range(20))  # which drops pieces
    (listed,) = list_pieces(user)
    assert (listed["pieces"], listed["bytes"], listed["open_runs"]) == (4, 4 * FILE, 1)
    assert clear_pieces(user, force=True) == (4, 4 * FILE)
    cache.close()
    assert clear_pieces(user) == (0, 0)
    assert all(stranger.read_bytes() == b"x" * 10 * FILE for stranger in strangers)
    assert {path.name for path in folder.glob("pieces/*")} >= {"photos", "notes.txt", "a" * 64}
