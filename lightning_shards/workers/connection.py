"""The connection of one worker process: messages to the trainer, and a credit for each one back.

It is a pipe of multiprocessing. A worker may send as many messages as it has credits, so what is on
its way is bounded. The trainer says when it closes the stream: a pipe that breaks without that word
means that the trainer is gone.

What is large lies in buffers of shared memory, one for each message that may be on its way and two
that the trainer may keep. They have no name that a killed process could leave. The first byte of a
buffer says whether it is in use. A worker sets it when it begins a message, and the trainer clears
it when it holds nothing of that message any more. A fork of the trainer that goes on with a batch
has to copy it, since the trainer alone says when a buffer is free.
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
from typing import Any, NoReturn
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

_PIPE_BYTES = 2**12
"""More than this goes through shared memory. The buffer of a pipe holds dozens of such messages, so
a worker does not wait for the trainer to read."""

_CREDIT, _END = b"c", b"e"
"""The words of the trainer."""

_CHECK_MS = round(1000 * CHECK_S)


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

    def grow(self, size: int) -> None:
        """Let it hold so many bytes at least; those that it holds stay."""
        if len(self.content) < size:
            os.ftruncate(self._fd, _HEADER + size)
            self._map()

    def follow(self, size: int) -> None:
        """Map so many bytes at least, which the other process has made."""
        if len(self.content) < size:
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
    """The end of the connection that a worker process has.

    A process that listens ends when the trainer has closed the stream, or is gone.

    Args:
        connection: The worker's end of the pipe.
        credit: Messages that may be on their way.
    """

    def __init__(self, connection: Connection, credit: int) -> None:
        self._connection, self._credit = connection, credit

    def wait_for_credit(self) -> None:
        """Wait until one more message may be sent."""
        while not self._credit:
            self._listen()
        self._credit -= 1

    def wait_for_end(self) -> NoReturn:
        """Wait until the trainer has closed the stream."""
        while True:
            self._listen()

    def raise_if_closed(self) -> None:
        """Look whether the trainer has closed the stream, without a wait."""
        while self._connection.poll():
            self._listen()

    def send(self, message: bytes) -> None:
        """Send a message, unless nobody takes it: who listens next is told why."""
        with suppress(ConnectionError):
            self._connection.send_bytes(message)

    def _listen(self) -> None:
        try:
            word = self._connection.recv_bytes()
        except (EOFError, ConnectionError):  # the trainer is gone
            wait_for_guard()
        if word == _END:
            raise SystemExit
        self._credit += 1


class MessageMaker:
    """Makes the messages of one worker, and gives its batches memory to be made in.

    Args:
        buffers: The buffers of the worker.

    Attributes:
        arena: Memory for the arrays of the next batches, as far as they fit.
    """

    def __init__(self, buffers: Sequence[SharedBuffer]) -> None:
        self._buffers = buffers
        self._batch_bytes = 0
        self._number: int | None = None  # of the buffer that the arena is of
        self.arena = Arena()

    def prepare(self, batches: int) -> None:
        """Give the arena memory for so many batches; make them next, and then call `message`."""
        if self._batch_bytes:
            buffer = self._buffers[self._taken()]
            buffer.grow(batches * self._batch_bytes)
            self.arena.use(buffer.content)

    def message(self, items: Received) -> bytes:
        """The message of these batches, and of the failure that ended them.

        Raises:
            Exception: Something in them cannot be pickled; then a message of others may be made.
        """
        value = taken_apart(list(items))
        if value.parts or len(value.content) > _PIPE_BYTES:
            message: tuple[Any, ...] = self._placed(value, len(items))
        else:
            message = None, value.content, ()
            if self._number is not None:
                self._buffers[self._number].flags[0] = 0
        self._number = None
        self.arena.use_none()
        return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)

    def _taken(self) -> int:
        """The number of a free buffer, which is in use from now on."""
        if self._number is None:  # as many messages as there is credit for leave one free
            self._number = [bool(buffer.flags[0]) for buffer in self._buffers].index(False)
            self._buffers[self._number].flags[0] = 1
        return self._number

    def _placed(self, value: Packed, batches: int) -> tuple[int, slice, list[slice]]:
        """Put into a buffer what was not made in it: the number of the buffer, and where all is."""
        number, end = self._taken(), self.arena.claimed
        places: list[slice] = []
        for part in value.parts:
            start = self.arena.start_of(part)
            if start is None:
                start, end = end, end + aligned(len(part))
            places.append(slice(start, start + len(part)))
        content = slice(end, end + len(value.content))
        buffer = self._buffers[number]
        buffer.grow(content.stop)
        self._batch_bytes = max(self._batch_bytes, -(-content.stop // batches))
        for part, place in zip(value.parts, places, strict=True):
            if place.start >= self.arena.claimed:
                buffer.content[place] = part
        buffer.content[content] = np.frombuffer(value.content, np.uint8)
        return number, content, places


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
        while not self._arrivals.poll(_CHECK_MS):
            raise_if_cancelled()
        value = self._unpacked(*pickle.loads(self._connection.recv_bytes()))  # noqa: S301 its own
        with suppress(ConnectionError):  # it has ended, which the next call finds out
            self._connection.send_bytes(_CREDIT)
        return value

    def _unpacked(self, number: int | None, content: Any, places: Sequence[slice]) -> Received:
        """What is packed: as bytes in the message, or in these places of the buffer of a number."""
        if number is None:
            return put_together(Packed(content, []))
        buffer = self._buffers[number]
        buffer.follow(content.stop)
        lease = Lease(buffer)
        memory = np.asarray(lease)
        parts = [memory[place] for place in places]
        if len(self._leases) >= _SPARE_BUFFERS:
            parts = [part.copy() for part in parts]
        self._leases.add(lease)
        return put_together(Packed(memory[content], parts))

    def close(self) -> None:
        """End the stream and close this end of the connection."""
        with suppress(OSError):  # the other end is gone already
            self._connection.send_bytes(_END)
        self._connection.close()
