"""A fork of the trainer frees no buffer that the trainer still uses."""

import multiprocessing

from tests.workers.message_examples import BATCH, message_of, unpacked


def fork_and_drop(batch):
    fork = multiprocessing.get_context("fork").Process(target=batch.clear)
    fork.start()
    fork.join(60)
    assert fork.exitcode == 0


def test_a_fork_releases_no_buffer():
    sent = message_of(BATCH)
    (loaded,) = unpacked(sent, copy=False)
    fork_and_drop(loaded.batch)
    assert sent.buffer.is_in_use
    loaded.batch.clear()
    assert not sent.buffer.is_in_use
