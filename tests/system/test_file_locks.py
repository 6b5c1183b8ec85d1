"""Locks exclude each other, in one process, too, and end with what holds them."""

import os

import pytest

from lightning_shards.system import file_locks
from lightning_shards.system.file_locks import FileLocks


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
    first.close()
    assert not locks.is_free(1)
    second.close()
    assert locks.is_free(1)


def test_a_lock_that_was_given_back_is_free_though_a_fork_has_its_file(locks):
    lock = locks.take(4)
    copy = os.dup(lock.file)  # as a process has it that is forked now
    lock.close()
    assert locks.is_free(4)
    os.close(copy)


def test_a_lock_can_be_shared_afterwards(locks):
    lock = locks.take(1)
    assert locks.take(1, shared=True) is None
    locks.share(lock.file, 1)
    other = locks.take(1, shared=True)
    assert other is not None
    lock.close()
    other.close()


def test_waiting_ends(locks):
    with locks.held(3), locks.held(3, wait_s=0.02) as second:
        assert second is None


def test_no_file_stays_open(locks, open_files):
    with locks.held(3):
        for _ in range(5):
            assert locks.take(3) is None
    assert open_files() == []


def test_the_first_one_has_a_lock_alone_and_the_others_share_it(locks):
    first, is_alone = locks.take_first(3, wait_s=0)
    assert is_alone
    locks.share(first.file, 3)
    second, is_alone = locks.take_first(3, wait_s=0)
    assert not is_alone
    first.close()
    assert not locks.is_free(3)
    second.close()


def test_where_there_are_no_locks_all_get_them_and_are_told(locks, no_locks, open_files):
    with locks.held(3) as first, locks.held(3) as second:
        assert not first.is_sure
        assert not second.is_sure
    assert locks.is_free(3) is None
    lock, is_alone = locks.take_first(3, wait_s=0)
    assert not is_alone
    lock.close()
    assert open_files() == []


def test_a_call_that_fails_once_keeps_nobody_from_sharing(locks, failing_lock_calls):
    first, is_alone = locks.take_first(3, wait_s=0)
    failing_lock_calls(1)
    locks.share(first.file, 3)
    second = locks.take(3, shared=True)
    assert is_alone
    assert second.is_sure
    first.close()
    second.close()
