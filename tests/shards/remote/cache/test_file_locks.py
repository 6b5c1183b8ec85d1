"""Locks exclude each other, in one process, too, and end with what holds them."""

import os

from lightning_shards.shards.remote.cache.piece_folder import is_locked, locked_within


def test_a_file_is_locked_for_one_or_shared(tmp_path):
    with locked_within(tmp_path / "lock") as first, locked_within(tmp_path / "lock") as second:
        assert first is not None
        assert second is None
    files = [os.open(tmp_path / "lock", os.O_RDONLY) for _ in range(2)]
    assert all(is_locked(file, shared=True) for file in files)
    with locked_within(tmp_path / "lock") as alone:
        assert alone is None
    for file in files:
        os.close(file)
    with locked_within(tmp_path / "lock") as alone:
        assert alone is not None


def test_a_lock_that_was_given_back_is_free_though_a_fork_has_its_file(tmp_path):
    with locked_within(tmp_path / "lock") as file:
        copy = os.dup(file)  # as a process has it that is forked now
    with locked_within(tmp_path / "lock") as again:
        assert again is not None
    os.close(copy)


def test_waiting_ends(tmp_path):
    with locked_within(tmp_path / "lock"), locked_within(tmp_path / "lock", wait_s=0.02) as second:
        assert second is None
