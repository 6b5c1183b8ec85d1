"""Locks exclude each other, in one process, too, and end with what holds them."""

import os

import pytest

from lightning_shards.shards.remote.cache import file_locks
from lightning_shards.shards.remote.cache.file_locks import FileLocks


@pytest.fixture(params=[True, False], ids=["bytes", "whole files"])
def locks(tmp_path, monkeypatch, request):
    """Locks of bytes, and those of systems that have none."""
    monkeypatch.setattr(file_locks, "_HAS_BYTES", request.param)
    return FileLocks(tmp_path / "lock")


def test_a_lock_is_given_once(locks):
    with locks.held(5) as first, locks.held(5) as second:
        assert first is not None
        assert second is None
    assert locks.is_free(5)


def test_locks_of_other_numbers_are_others(locks):
    with locks.held(0) as first, locks.held(1) as second, locks.held(2**60) as third:
        assert None not in (first, second, third)


def test_shared_locks_keep_out_who_wants_it_alone(locks):
    first, second = locks.take(1, shared=True), locks.take(1, shared=True)
    assert not locks.is_free(1)
    os.close(first)
    assert not locks.is_free(1)
    os.close(second)
    assert locks.is_free(1)


def test_a_lock_can_be_shared_afterwards(locks):
    file = locks.take(1)
    assert locks.take(1, shared=True) is None
    locks.share(file, 1)
    other = locks.take(1, shared=True)
    assert other is not None
    os.close(file)
    os.close(other)


def test_waiting_ends(locks):
    with locks.held(3), locks.held(3, wait_s=0.02) as second:
        assert second is None


def test_no_file_stays_open(locks, open_files):
    with locks.held(3):
        for _ in range(5):
            assert locks.take(3) is None
    assert open_files() == []


def test_where_there_are_no_locks_all_get_them(locks, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(file_locks.fcntl, "fcntl", refuse)
    monkeypatch.setattr(file_locks.fcntl, "flock", refuse)
    with locks.held(3) as first, locks.held(3) as second:
        assert None not in (first, second)
