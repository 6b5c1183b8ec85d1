"""The connection of a worker: what goes in comes out, and no end waits for want of room."""

import contextlib
import os
import resource
import socket
import threading

import pytest

from lightning_shards.errors import WorkerError
from lightning_shards.workers.connection import TrainerEnd, WorkerEnd, new_memory

SLOTS = 2


@pytest.fixture
def ends():
    """A trainer's end and a worker's end, which has read the stages."""
    first, second = socket.socketpair()
    second.settimeout(30)
    first.settimeout(30)
    stages = new_memory(4)
    trainer = TrainerEnd(first, stages, SLOTS)
    os.close(stages)
    worker = WorkerEnd(second, SLOTS)
    yield trainer, worker
    trainer.close()
    second.close()


def test_content_of_any_size_arrives_while_nobody_reads(ends):
    trainer, worker = ends
    worker.stage_byte(0)
    sizes = [0, 1, 100, 2**12, 2**12 + 1, 3, 2**20, 2**21, 2**14, 2**22, 2**14]
    for first in range(0, len(sizes), SLOTS):
        pair = sizes[first : first + SLOTS]
        for size in pair:
            assert worker.wait_for_credit()
            assert worker.send(bytes([size % 251]) * size)
        for size in pair:
            content, fd = trainer.receive()
            assert fd is None
            assert bytes(content) == bytes([size % 251]) * size
            del content
            trainer.give_credit()


@pytest.mark.parametrize("size", [0, 2**16])
def test_a_file_comes_with_its_message(size, ends, tmp_path):
    trainer, worker = ends
    worker.stage_byte(0)
    (tmp_path / "file").write_text("here")
    with (tmp_path / "file").open() as file:
        worker.send(bytes(size))
        worker.send(bytes(size), file.fileno())
    assert trainer.receive().fd is None
    with os.fdopen(trainer.receive().fd) as received:
        assert received.read() == "here"


def test_shutting_wakes_a_trainer_that_waits_and_a_worker_that_would_go_on(ends):
    trainer, worker = ends
    worker.stage_byte(0)
    errors = []

    def receive():
        with pytest.raises(EOFError) as caught:
            trainer.receive()
        errors.append(caught.value)

    waiting = threading.Thread(target=receive)
    waiting.start()
    trainer.shut()
    waiting.join(30)
    assert len(errors) == 1
    assert not worker.send(b"late")
    trainer.give_credit()  # the worker is gone: nothing happens
    trainer.close()
    assert [worker.wait_for_credit() for _ in range(SLOTS + 1)] == [True] * SLOTS + [False]


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_worker_knows_whether_the_stream_was_closed_or_the_trainer_is_gone(is_closed, ends):
    """It asks when it has no credit left, or when nobody takes its message."""
    trainer, worker = ends
    worker.stage_byte(0)
    assert worker.wait_for_credit()
    (trainer.close if is_closed else trainer.leave)()
    assert not worker.send(b"late")
    assert worker.is_closed() is is_closed
    assert not worker.wait_for_credit()


def test_a_worker_can_look_whether_its_stream_is_closed_without_taking_a_credit(ends):
    trainer, worker = ends
    worker.stage_byte(0)
    worker.raise_if_closed()
    assert [worker.wait_for_credit() for _ in range(SLOTS)] == [True] * SLOTS
    worker.raise_if_closed()
    trainer.give_credit()
    trainer.shut()
    with pytest.raises(SystemExit):
        worker.raise_if_closed()
    assert worker.wait_for_credit()
    assert not worker.wait_for_credit()


@pytest.fixture
def leave_files():
    """Leaves so many numbers for files that may still be opened."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers = []

    def leave(number):
        free = [os.dup(0) for _ in range(number + 1)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), most))
        for fd in free:
            os.close(fd)
        with contextlib.suppress(OSError):
            while len(fillers) < limit:
                fillers.append(os.dup(0))
        for _ in range(number):
            os.close(fillers.pop())

    yield leave
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    for fd in fillers:
        os.close(fd)


@pytest.mark.parametrize("free", [0, 2])
def test_files_that_cannot_be_opened_are_named_as_the_cause(free, ends, leave_files, tmp_path):
    """The kernel drops them without an error, and the next file would stand for a lost one."""
    trainer, worker = ends
    worker.stage_byte(0)
    (tmp_path / "file").write_text("here")
    with (tmp_path / "file").open() as file:
        assert worker.send(bytes(2**16), file.fileno())
        leave_files(free)
        with pytest.raises(WorkerError, match=r"ulimit -n"):
            trainer.receive()
        left = [os.dup(0) for _ in range(free)]  # all that came were closed
        for fd in left:
            os.close(fd)
