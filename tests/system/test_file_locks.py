"""Locks exclude each other, in one process, too, and end with what holds them."""

import os

import pytest

from lightning_shards.system.file_locks import FileLocks, is_locked, locked_file


@pytest.fixture
def locks(tmp_path):
    return FileLocks(tmp_path / "lock")


def test_a_lock_is_given_once(locks):
    with locks.held(5) as first, locks.held(5) as second:
        assert first is not None
        assert second is None
    assert locks.is_free(5)


def test_locks_of_other_numbers_are_others(locks):
    with locks.held(0) as first, locks.held(1) as second, locks.held(2**60) as third:
        assert None not in (first, second, third)


def test_a_file_is_locked_for_one_or_shared(tmp_path):
    with locked_file(tmp_path / "lock") as first, locked_file(tmp_path / "lock") as second:
        assert first is not None
        assert second is None
    files = [os.open(tmp_path / "lock", os.O_RDONLY) for _ in range(2)]
    assert all(is_locked(file, shared=True) for file in files)
    with locked_file(tmp_path / "lock") as alone:
        assert alone is None
    for file in files:
        os.close(file)
    with locked_file(tmp_path / "lock") as alone:
        assert alone is not None


def test_a_lock_that_was_given_back_is_free_though_a_fork_has_its_file(tmp_path):
    with locked_file(tmp_path / "lock") as file:
        copy = os.dup(file)  # as a process has it that is forked now
    with locked_file(tmp_path / "lock") as again:
        assert again is not None
    os.close(copy)


def test_waiting_ends(locks):
    with locks.held(3), locks.held(3, wait_s=0.02) as second:
        assert second is None


def test_no_file_stays_open(locks, open_files):
    with locks.held(3):
        for _ in range(5):
            assert not locks.is_free(3)
    assert open_files() == []


def test_where_there_are_no_locks_all_get_them_and_are_told(locks, no_locks, open_files):
    with locks.held(3) as first, locks.held(3) as second:
        assert not first.is_sure
        assert not second.is_sure
    assert locks.is_free(3) is None
    assert open_files() == []
