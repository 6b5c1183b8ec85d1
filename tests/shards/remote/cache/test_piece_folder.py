"""The folder of pieces is entered and left: what is cleaned up, and when."""

import socket
import tempfile
from pathlib import Path

import pytest
from cached_bytes import FILE, bytes_of, disk_bytes, load, make_cache, make_need, piece_number

from lightning_shards.errors import ConfigError
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.cache import piece_folder
from lightning_shards.shards.remote.cache.piece_folder import PieceFolder, folder_of_pieces
from lightning_shards.shards.remote.cache.upkeep import clear_pieces

PIECE = piece_number(3)


@pytest.fixture(params=["disk", "memory"])
def folder(request, tmp_path):
    """A cache folder on a disk, and one in memory."""
    if request.param == "disk":
        yield tmp_path / "cache"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as above:
        yield Path(above) / "cache"


def leave_as_if_killed(folder):
    """What a killed process leaves: the need of its run, and a piece half written."""
    part = folder / "pieces" / "parts" / "77-0123456789abcdef"
    part.write_bytes(b"half")
    run = folder / "pieces" / "runs" / "killed"
    run.write_text('{"data": "a", "limit_bytes": 1, "reads_bytes": 1, "working_set_bytes": 1}')
    return part, run


def test_what_a_killed_process_left_is_removed_by_the_next_one(folder):
    cache = make_cache(folder, make_need(10))
    load(cache, PIECE)
    left = leave_as_if_killed(folder)
    other = make_cache(folder, make_need(10), "other")
    other.open(PIECE)
    assert not left[0].exists()
    assert disk_bytes(folder) == FILE
    left = leave_as_if_killed(folder)
    other.close()
    cache.close()
    assert make_cache(folder, make_need(10)).open(PIECE) is None or "shm" not in str(folder)
    assert not any(path.exists() for path in left)


def test_a_run_that_was_killed_gives_its_room_back(folder):
    cache = make_cache(folder, make_need(10))
    load(cache, PIECE)
    leave_as_if_killed(folder)  # its limit is one byte
    for number in range(10):
        load(cache, piece_number(number))
    assert disk_bytes(folder) > FILE


def test_pieces_on_a_disk_outlive_their_run_and_those_in_memory_do_not(folder):
    first, second = (make_cache(folder, make_need(10), run) for run in ("first", "second"))
    load(first, PIECE)
    load(second, PIECE)
    first.close()
    assert load(second, PIECE) == bytes_of(PIECE)
    second.close()
    assert folder.exists() == ("shm" not in str(folder))
    assert load(first, PIECE) == bytes_of(PIECE)  # it may be used again
    assert first.counts.fetched == 1 + ("shm" in str(folder))
    first.close()


def test_what_is_left_in_memory_can_be_removed_by_whoever_sees_the_end(folder):
    cache = make_cache(folder, make_need(10))
    load(cache, PIECE)
    seen = PieceFolder(CacheFolder(folder), folder / "pieces")
    seen.remove_if_left()
    assert disk_bytes(folder) == FILE  # a process is in it
    for held in cache._here()._held:
        piece_folder.os.close(held)  # it is killed
    seen.remove_if_left()
    assert folder.exists() == ("shm" not in str(folder))
    seen.remove_if_left()


def test_a_cache_folder_in_memory_keeps_what_else_is_in_it():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        table = Path(folder, "0.tar.members")
        table.write_text("a table")
        cache = make_cache(Path(folder), make_need(10))
        load(cache, PIECE)
        cache.close()
        assert [*Path(folder).iterdir()] == [table]


def put_tables(folder):
    """What is fetched to a cache folder beside pieces."""
    names = (f"members/{'a' * 24}/0.tar.members", f"indexes/{'b' * 16}.json")
    paths = [folder / name for name in (*names, f"locations/{'c' * 64}.json")]
    for path in paths:
        CacheFolder(folder).write(path, b"{}")
    return paths


def test_with_the_last_process_tables_and_signed_locations_leave_memory(folder):
    first, second = (make_cache(folder, make_need(10), run) for run in ("first", "second"))
    load(first, PIECE)
    load(second, PIECE)
    paths = put_tables(folder)
    first.close()
    assert all(path.exists() for path in paths)
    second.close()
    assert folder.exists() == ("shm" not in str(folder))
    assert all(path.exists() == ("shm" not in str(folder)) for path in paths)


def test_a_run_that_is_set_up_or_enters_keeps_the_tables_that_it_fetched(folder):
    cache = make_cache(folder, make_need(10))
    load(cache, PIECE)
    paths = put_tables(folder)
    for held in cache._here()._held:
        piece_folder.os.close(held)  # it is killed
    PieceFolder(CacheFolder(folder), folder / "pieces").remove_if_left()
    assert all(path.exists() for path in paths)
    following = make_cache(folder, make_need(10), "next")
    load(following, PIECE)
    assert all(path.exists() for path in paths)
    following.close()


def test_files_of_others_beside_tables_stay_in_memory():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as above:
        folder, elsewhere = Path(above, "cache"), Path(above, "elsewhere")
        cache = make_cache(folder, make_need(10))
        load(cache, PIECE)
        put_tables(folder)
        elsewhere.mkdir()
        (elsewhere / f"{'b' * 16}.json").write_text("{}")
        (folder / "indexes" / f"{'b' * 16}.json").unlink()
        (folder / "indexes").rmdir()
        (folder / "indexes").symlink_to(elsewhere)
        (folder / "members" / "of the club.txt").write_text("names")
        cache.close()
        assert {path.name for path in folder.rglob("*")} == {
            *("indexes", "members", "of the club.txt")
        }
        assert [*elsewhere.iterdir()]


def test_empty_folders_of_objects_are_removed(tmp_path):
    cache = make_cache(tmp_path, make_need(3, working_set_bytes=3 * FILE))
    for number in range(0, 160, 16):
        load(cache, piece_number(number))
    cache.close()
    make_cache(tmp_path, make_need(3)).open(PIECE)
    assert len([*tmp_path.glob("pieces/*" + "[0-9a-f]" * 60)]) == disk_bytes(tmp_path) // FILE


def test_on_a_network_file_system_each_machine_has_a_folder(tmp_path, monkeypatch, caplog):
    assert folder_of_pieces(CacheFolder(tmp_path)) == tmp_path / "pieces"
    assert not caplog.records
    monkeypatch.setattr(piece_folder, "is_shared_by_machines", lambda _: True)
    found = folder_of_pieces(CacheFolder(tmp_path))
    assert found == tmp_path / f"pieces-{socket.gethostname()}"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "name a folder on a disk of this machine as cache_dir" in caplog.text


def test_what_other_machines_left_on_a_network_file_system_is_told(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(piece_folder, "is_shared_by_machines", lambda _: True)
    for name in ("pieces", f"pieces-{socket.gethostname()}", "pieces-gone", "pieces-empty"):
        PieceFolder(CacheFolder(tmp_path), tmp_path / name).enter()
    folder_of_pieces(CacheFolder(tmp_path))
    assert "other machines" not in caplog.text
    for name in (f"pieces-{socket.gethostname()}", "pieces-gone"):
        folder = PieceFolder(CacheFolder(tmp_path), tmp_path / name)
        with folder.locks.held(piece_folder.COUNTER_LOCK) as lock:
            folder.write_used(lock.file, 3 * 2**30)
    (tmp_path / "pieces-strange").write_text("no folder")
    folder_of_pieces(CacheFolder(tmp_path))
    assert "folders of other machines in" in caplog.text
    assert "hold 3 GiB, which no limit of this machine counts" in caplog.text


@pytest.mark.parametrize("run", ["", "../run", "a/b", ".hidden", "x" * 65])
def test_names_that_are_no_files_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="cannot name a run"):
        make_cache(tmp_path, make_need(3), run).open(PIECE)


def test_what_is_not_of_the_cache_is_neither_counted_nor_removed(folder):
    """Somebody may name a folder as cache_dir that holds a folder `pieces` of another kind."""
    strangers = [folder / "pieces" / name for name in ("photos/1.jpg", "notes.txt", "a" * 64)]
    for stranger in strangers:
        stranger.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        stranger.write_bytes(b"x" * 10 * FILE)
    cache = make_cache(folder, make_need(4))
    for number in range(20):
        load(cache, piece_number(number))  # which drops pieces
    entered = PieceFolder(CacheFolder(folder), folder / "pieces")
    assert 0 < sum(piece.size for piece in entered.pieces()) <= 4 * FILE
    cache.close()
    make_cache(folder, make_need(4), "next").open(PIECE)
    clear_pieces(entered, force=True)
    assert all(stranger.read_bytes() == b"x" * 10 * FILE for stranger in strangers)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        '{"data": "a", "limit_bytes": "9", "reads_bytes": 9, "working_set_bytes": 9}',
        '{"data": "a", "limit_bytes": 9, "reads_bytes": [], "working_set_bytes": NaN}',
        '{"data": "a", "limit_bytes": 9}',
    ],
)
def test_the_file_of_a_run_that_holds_no_numbers_is_no_need(folder, text):
    cache = make_cache(folder, make_need(10))
    load(cache, PIECE)
    (folder / "pieces" / "runs" / "strange").write_text(text)
    for number in range(20):
        load(cache, piece_number(number))
    assert cache.counts.bypassed == 0
    assert FILE < disk_bytes(folder) <= 10 * FILE
    cache.close()
