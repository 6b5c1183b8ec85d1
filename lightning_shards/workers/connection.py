"""The connection of one worker process: messages to the trainer, and a credit for each one back.

It is a pipe of multiprocessing. A worker may send as many messages as it has credits, so what is on
its way is bounded. The trainer says when it closes the stream: a pipe that breaks without that word
means that the trainer is gone.

The batches lie in buffers of shared memory, one for each message that may be on its way and two
that the trainer may keep; the message itself says where in which buffer. They have no name that a
killed process could leave. The first byte of a buffer says whether it is in use. A worker sets it
when it begins a message, and the trainer clears it when it holds nothing of that message any more.
A fork of the trainer that goes on with a batch has to copy it, since the trainer alone says when a
buffer is free.
"""

import mmap
import os
import pickle
import select
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from lightning_shards.samples.tensors import Arena, aligned
from lightning_shards.system.guard import wait_for_guard
from lightning_shards.system.process import CHECK_S, raise_if_cancelled
from lightning_shards.workers.messages import Packed, put_together, taken_apart
from lightning_shards.workers.pool import Received

_HEADER = aligned(2)
"""Bytes before the content of a buffer: two flags, and padding that aligns the content."""

_SPARE_BUFFERS = 2
"""Buffers of each worker that the trainer may keep batches in; it copies those of others. A loop
that asks for the next batch still has the last one, which may be of the message before."""

_CREDIT, _END = b"c", b"e"
"""The words of the trainer."""


class SharedBuffer:
    """Shared memory for one message at a time, which grows with the messages.

    It is pickled for a process that is started, which then has it, too.

    Attributes:
        flags: uint8 of shape (2,): whether it holds a message whose arrays the trainer may still
            use, and, in the first buffer of a worker, the stage that the worker began last.
        content: The bytes that a message may use: uint8, without the flags.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = _new_memory() if fd is None else fd
        weakref.finalize(self, os.close, self._fd)
        self._map()

    def _map(self) -> None:
        memory: NDArray[np.uint8] = np.frombuffer(mmap.mmap(self._fd, 0), np.uint8)
        self.flags, self.content = memory[:2], memory[_HEADER:]

    def hold(self, size: int) -> None:
        """Let it hold so many bytes at least, in both processes; those that it holds stay."""
        if len(self.content) < size:
            os.ftruncate(self._fd, max(_HEADER + size, os.fstat(self._fd).st_size))
            self._map()

    def __reduce__(self) -> tuple[Any, ...]:
        return _received_buffer, (DupFd(self._fd),)


def _received_buffer(fd: Any) -> SharedBuffer:
    return SharedBuffer(fd.detach())


def _new_memory() -> int:
    """A file descriptor of new memory, which has no name and is gone with its last user."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("lightning_shards")
    else:  # macOS
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, _HEADER)
    return fd


def new_buffers(prefetch_factor: int) -> list[SharedBuffer]:
    """The buffers of a worker that may have so many messages on their way."""
    return [SharedBuffer() for _ in range(prefetch_factor + _SPARE_BUFFERS)]


class WorkerEnd:
    """The end of the connection that a worker process has, and the memory of its batches.

    A process that listens ends when the trainer has closed the stream, or is gone.

    Args:
        connection: The worker's end of the pipe.
        buffers: The buffers of the worker.

    Attributes:
        arena: Memory for the arrays of the next batches, as far as they fit.
    """

    def __init__(self, connection: Connection, buffers: Sequence[SharedBuffer]) -> None:
        self._connection, self._buffers = connection, buffers
        self._credit = len(buffers) - _SPARE_BUFFERS
        self._number = self._batch_bytes = 0  # of the buffer of this message; of the largest batch
        self.arena = Arena()

    def begin(self, batches: int) -> None:
        """Wait until one more message may be sent, and give the arena memory for its batches."""
        while not self._credit:
            self.listen()
        self._credit -= 1
        # as many messages as there is credit for leave one free
        self._number = [bool(buffer.flags[0]) for buffer in self._buffers].index(False)
        buffer = self._buffers[self._number]
        buffer.flags[0] = 1
        if self._batch_bytes:
            buffer.hold(batches * self._batch_bytes)
            self.arena.use(buffer.content)

    def send(self, items: Received) -> None:
        """Send the message that was begun: these batches, and the failure that ended them.

        What was not made in its buffer is put there. Nobody may take it: who listens next is told
        why.

        Raises:
            Exception: Something in them cannot be pickled; then others may be sent in their place.
        """
        value = taken_apart(list(items))
        parts = [*value.parts, np.frombuffer(value.content, np.uint8)]
        claimed = end = self.arena.claimed
        places: list[slice] = []
        for part in parts:
            start = self.arena.start_of(part)
            if start is None:
                start, end = end, end + aligned(len(part))
            places.append(slice(start, start + len(part)))
        buffer = self._buffers[self._number]
        buffer.hold(end)
        self._batch_bytes = max(self._batch_bytes, -(-end // len(items)))
        for part, place in zip(parts, places, strict=True):
            if place.start >= claimed:
                buffer.content[place] = part
        self.arena.use()
        with suppress(ConnectionError):
            self._connection.send_bytes(pickle.dumps((self._number, places)))

    def raise_if_closed(self) -> None:
        """Look whether the trainer has closed the stream, without a wait."""
        while self._connection.poll():
            self.listen()

    def listen(self) -> None:
        """Wait for a word of the trainer."""
        try:
            word = self._connection.recv_bytes()
        except (EOFError, ConnectionError):  # the trainer is gone
            wait_for_guard()
        if word == _END:
            raise SystemExit
        self._credit += 1


class Lease:
    """The content of a buffer for as long as an array or a tensor shares its memory.

    ``numpy.asarray(lease)`` gives the content as an array. This array and its slices keep the
    lease; when the last of them is gone, the buffer is free again.
    """

    def __init__(self, buffer: SharedBuffer) -> None:
        self._flags, self._content, self._pid = buffer.flags, buffer.content, os.getpid()
        self.__array_interface__ = buffer.content.__array_interface__

    def __del__(self) -> None:
        if os.getpid() == self._pid:  # a fork of the trainer drops its copy, too
            self._flags[0] = 0


class TrainerEnd:
    """The end of the connection that the trainer has.

    Args:
        connection: The trainer's end of the pipe.
        buffers: The buffers of the worker.
    """

    def __init__(self, connection: Connection, buffers: Sequence[SharedBuffer]) -> None:
        self._connection, self._buffers = connection, buffers
        self._leases: WeakSet[Lease] = WeakSet()
        self._arrivals = select.poll()
        self._arrivals.register(connection, select.POLLIN)

    @property
    def stage(self) -> int:
        """The number of the stage that the worker began last."""
        return int(self._buffers[0].flags[1])

    def receive(self) -> Received:
        """Wait for what the worker has sent, and let it make one more message.

        Raises:
            EOFError: The worker has ended.
            Exception: What a check of this thread raises meanwhile, or what unpacking does.
        """
        while not self._arrivals.poll(1000 * CHECK_S):
            raise_if_cancelled()
        value = self._unpacked(*pickle.loads(self._connection.recv_bytes()))  # noqa: S301 its own
        with suppress(ConnectionError):  # it has ended, which the next call finds out
            self._connection.send_bytes(_CREDIT)
        return value

    def _unpacked(self, number: int, places: Sequence[slice]) -> Received:
        """What lies in these places of the buffer of a number: large arrays, then all else."""
        buffer = self._buffers[number]
        buffer.hold(places[-1].stop)
        lease = Lease(buffer)
        memory = np.asarray(lease)
        *parts, content = [memory[place] for place in places]
        if len(self._leases) >= _SPARE_BUFFERS:
            parts = [part.copy() for part in parts]
        self._leases.add(lease)
        return put_together(Packed(content, parts))

    def close(self) -> None:
        """End the stream and close this end of the connection."""
        with suppress(OSError):  # the other end is gone already
            self._connection.send_bytes(_END)
        self._connection.close()
