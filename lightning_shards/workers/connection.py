"""The connection of one worker process: bytes to the trainer, and a credit for each message back.

It is a pair of sockets. A worker may send as many messages as it has credits, so what is on its way
is bounded. The trainer says when it closes the stream: a connection that breaks without that word
means that the trainer is gone. Large content lies in memory that both ends have mapped, one slot
for each message that may be on its way: a message in the socket always fits into the socket's own
buffer, so a worker never waits for the trainer to read. Nothing of this has a name that a killed
process could leave.

Tensors lie in buffers of shared memory, which are used again. The first byte of a buffer says
whether it is in use. A worker sets it when it begins a message, and the trainer clears it when it
holds no tensor of that message any more. A fork of the trainer that goes on with a batch has to
copy it, since the trainer alone says when a buffer is free.
"""

import mmap
import os
import resource
import select
import shutil
import socket
import struct
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import WorkerError
from lightning_shards.samples.tensors import aligned
from lightning_shards.system.process import CHECK_S, raise_if_cancelled

_HEADER = aligned(1)
"""Bytes before the content of a buffer: the flag, and padding that aligns the content."""

SHARED_FOLDER = Path("/dev/shm")  # noqa: S108 files in it are memory; Linux has it there


class SharedBuffer:
    """Shared memory for one message at a time.

    Args:
        fd: File descriptor of a file in memory.
        number: Number of the buffer in its worker; None for a buffer that is used only once.

    Attributes:
        is_known: Whether the trainer has opened it; a worker sends its file only once.
    """

    def __init__(self, fd: int, number: int | None = None) -> None:
        self.fd, self.number, self.is_known = fd, number, False
        self._bytes: NDArray[np.uint8] = np.frombuffer(mmap.mmap(fd, 0), np.uint8)

    @classmethod
    def new(cls, size: int, number: int | None = None) -> "SharedBuffer":
        """A buffer with content of so many bytes. Its file has no name, so it is never left behind.

        Raises:
            WorkerError: There is no memory for it.
        """
        folder = SHARED_FOLDER if SHARED_FOLDER.is_dir() else None
        try:
            file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 closed with the buffer
            try:
                _allocate(file, _HEADER + size)
                buffer = cls(file.fileno(), number)
            except BaseException:
                file.close()
                raise
        except OSError as error:
            raise WorkerError(_no_memory(size, error)) from error
        weakref.finalize(buffer, file.close)
        return buffer

    @property
    def content(self) -> NDArray[np.uint8]:
        """The bytes that a message may use: uint8, without the header."""
        return self._bytes[_HEADER:]

    @property
    def is_in_use(self) -> bool:
        """Whether it holds a message whose tensors the trainer may still use."""
        return bool(self._bytes[0])

    @is_in_use.setter
    def is_in_use(self, value: bool) -> None:
        self._bytes[0] = value

    def free(self) -> None:
        """Say that no message uses it."""
        self.is_in_use = False


def _allocate(file: IO[bytes], size: int) -> None:
    """Make a file so many bytes long, and be sure of the memory for them where that is possible.

    Otherwise missing memory would end the process at the first write to it.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:  # macOS, where shared memory has no limit of its own
        file.truncate(size)


def _no_memory(size: int, error: OSError) -> str:
    free = shutil.disk_usage(SHARED_FOLDER if SHARED_FOLDER.is_dir() else "/").free
    mib = 2**20
    return (
        f"no shared memory for a message of {size / mib:,.1f} MiB ({error}; {SHARED_FOLDER} has "
        f"{free / mib:,.1f} MiB free): enlarge it (docker run --shm-size), lower prefetch_factor, "
        "num_workers or batch_size, or take pool='threads', which needs none"
    )


def too_many_files(error: OSError | None = None) -> WorkerError:
    """The error for files of a worker that this process could not open; `error` says why."""
    reason = f" ({error.strerror})" if error else ""
    return WorkerError(
        f"a file of memory that a worker sent cannot be opened here{reason}: this process may have "
        f"no more than {resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,} files open; raise that "
        "limit (ulimit -n), or take fewer workers"
    )


class ReceivedBuffers:
    """The buffers of one worker process that the trainer has open; each lives while it is used.

    Opening a buffer costs a millisecond, so a worker sends its file only with the first message in
    it, and its number with the others.
    """

    def __init__(self) -> None:
        self.by_number: dict[int, SharedBuffer] = {}

    def buffer(self, number: int | None, fd: int | None) -> SharedBuffer:
        """The buffer of a message, from its number and from its file if that came with it."""
        if fd is None:
            assert number is not None  # a buffer without a number always comes as a file
            return self.by_number[number]
        try:
            buffer = SharedBuffer(fd, number)
        except OSError as error:
            raise too_many_files(error) from error
        finally:
            os.close(fd)  # the memory map has a descriptor of its own
        if number is not None:
            self.by_number[number] = buffer
        return buffer


SPARE_BUFFERS = 1
"""Shared buffers of each worker that the trainer may keep batches in."""


def buffers_per_worker(prefetch_factor: int) -> int:
    """Shared buffers that one worker process needs, one for each message in shared memory.

    A worker may begin message number k + prefetch_factor when the trainer takes number k. While
    the worker makes that message, those from number k on may be on their way or in use. One more
    buffer is left to the trainer, for the batches that it works with. (A message that is larger
    than any before it needs another buffer for a moment.)
    """
    return prefetch_factor + 1 + SPARE_BUFFERS


class SharedBuffers:
    """The buffers of one worker process, kept by that process.

    Args:
        count: Number of buffers; see `buffers_per_worker`.
    """

    def __init__(self, count: int) -> None:
        self._buffers: list[SharedBuffer | None] = [None] * count
        self._number = 0

    def take(self, size: int) -> SharedBuffer:
        """A free buffer for so many bytes; it is in use from now on."""
        for _ in self._buffers:
            self._number = (self._number + 1) % len(self._buffers)
            buffer = self._buffers[self._number]
            if buffer is None or not buffer.is_in_use:
                break
        else:
            return SharedBuffer.new(size)
        if buffer is None or len(buffer.content) < size:
            buffer = SharedBuffer.new(size, self._number)
            self._buffers[self._number] = buffer
        buffer.is_in_use = True
        return buffer


class Lease:
    """The content of a buffer for as long as an array or a tensor shares its memory.

    ``numpy.asarray(lease)`` gives the content as an array. This array and its slices keep the
    lease; when the last of them is gone, the buffer is free again.
    """

    def __init__(self, buffer: SharedBuffer) -> None:
        self._buffer, self._pid = buffer, os.getpid()
        self.__array_interface__ = buffer.content.__array_interface__

    def __del__(self) -> None:
        if os.getpid() == self._pid:  # a fork of the trainer drops its copy, too
            self._buffer.is_in_use = False


_SOCKET_BYTES = 2**12
"""Longer content goes through memory. The buffer of a socket holds dozens of such messages."""

_HEAD = struct.Struct("<QBBB")
"""Bytes of the content; whether it is in memory, in new memory, and comes with another file."""

_CREDIT, _END = b"c", b"e"
"""The words of the trainer."""

_MAX_FDS = 2

_CHECK_MS = round(1000 * CHECK_S)


def new_memory(size: int) -> int:
    """A file descriptor of so much new memory, which has no name and is gone with its last user."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("lightning_shards")
    else:  # macOS
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


class Received(NamedTuple):
    """What the trainer received: bytes, valid until the next credit, and a file that came along."""

    content: bytes | memoryview
    fd: int | None


class WorkerEnd:
    """The end of the connection that a worker process has.

    Args:
        end: The socket.
        num_slots: Messages that may be on their way.
    """

    def __init__(self, end: socket.socket, num_slots: int) -> None:
        self._socket = end
        self._slots: list[_Slot | None] = [None] * num_slots
        self._number = 0
        self._word = b""
        self._arrivals = select.poll()
        self._arrivals.register(end, select.POLLIN)

    def stage_byte(self, worker: int) -> memoryview:
        """The byte of this worker in the memory that the trainer sends first."""
        _, fds, flags, _ = socket.recv_fds(self._socket, 1, 1)
        _require_fds(fds, 1, flags)
        with os.fdopen(fds[0]):
            return memoryview(mmap.mmap(fds[0], 0))[worker : worker + 1]

    def wait_for_credit(self) -> bool:
        """Wait until one more message may be sent; False if the stream has ended."""
        self._word = b""
        with suppress(ConnectionError):
            self._word = self._socket.recv(1)
        return self._word == _CREDIT

    def is_closed(self) -> bool:
        """Whether the trainer closed the stream that has ended; otherwise the trainer is gone."""
        while self._word == _CREDIT:
            self.wait_for_credit()
        return self._word == _END

    def raise_if_closed(self) -> None:
        """Look whether the trainer has closed the stream, without a wait.

        Raises:
            SystemExit: It has.
        """
        said = b""
        if self._arrivals.poll(0):
            with suppress(ConnectionError):
                said = self._socket.recv(_SOCKET_BYTES, socket.MSG_PEEK)
        if _END in said:
            raise SystemExit

    def send(self, content: bytes | memoryview, fd: int | None = None) -> bool:
        """Send a message, and a file if one is given; False if the stream has ended."""
        fds = [] if fd is None else [fd]
        size, is_in_memory, is_new = len(content), len(content) > _SOCKET_BYTES, False
        if is_in_memory:
            number = self._number % len(self._slots)
            slot = self._slots[number]
            if slot is None or slot.size < size:
                slot, is_new = _Slot(size), True
                self._slots[number] = slot
                fds.insert(0, slot.fd)
            slot.memory[:size] = content
            content = b""
        self._number += 1
        head = _HEAD.pack(size, is_in_memory, is_new, fd is not None)
        with suppress(ConnectionError):
            if fds:
                socket.send_fds(self._socket, [head], fds)
                self._socket.sendall(content)
            else:
                self._socket.sendall(head + content)
            return True
        return False


def _require_fds(fds: Sequence[int], sent: int, flags: int) -> None:
    """Check that all files of a message came with it: the kernel drops those it has no number for.

    Raises:
        WorkerError: One did not; those that came are closed.
    """
    if len(fds) == sent and not flags & socket.MSG_CTRUNC:
        return
    _close_all(fds)
    raise too_many_files()


def _mapped(fds: list[int]) -> mmap.mmap:
    """The memory of the first of these files, which is taken out of the list and closed."""
    try:
        with os.fdopen(fds[0]):
            memory = mmap.mmap(fds[0], 0)
    except OSError as error:
        _close_all(fds[1:])
        raise too_many_files(error) from error
    del fds[0]
    return memory


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        with suppress(OSError):  # it is closed already
            os.close(fd)


class _Slot:
    """Memory for the content of one message at a time."""

    def __init__(self, content_bytes: int) -> None:
        self.size = 1 << (content_bytes - 1).bit_length()  # so that it seldom has to grow
        self.fd = new_memory(self.size)
        self.memory = mmap.mmap(self.fd, self.size)

    def __del__(self) -> None:
        os.close(self.fd)


class TrainerEnd:
    """The end of the connection that the trainer has.

    Args:
        end: The socket.
        stages: File descriptor of the memory with a byte for each worker.
        num_slots: Messages that may be on their way.
    """

    def __init__(self, end: socket.socket, stages: int, num_slots: int) -> None:
        self._socket = end
        self._slots: list[mmap.mmap | None] = [None] * num_slots
        self._number = 0
        self._arrivals = select.poll()
        self._arrivals.register(end, select.POLLIN)
        socket.send_fds(end, [b"s"], [stages])
        end.sendall(_CREDIT * num_slots)

    def receive(self) -> Received:
        """Wait for a message.

        Raises:
            EOFError: The worker has ended, or the connection is shut.
            WorkerError: A file of the message did not come, because too many are open.
            BaseException: What a check of this thread raises meanwhile.
        """
        while not self._arrivals.poll(_CHECK_MS):
            raise_if_cancelled()
        data, fds, flags, _ = socket.recv_fds(self._socket, _HEAD.size, _MAX_FDS)
        try:
            head = data + self._exactly(_HEAD.size - len(data))
            size, is_in_memory, is_new, has_fd = _HEAD.unpack(head)
            _require_fds(fds, is_new + has_fd, flags)
        except BaseException:
            _close_all(fds)
            raise
        number = self._number % len(self._slots)
        self._number += 1
        if is_new:
            self._slots[number] = _mapped(fds)
        content: bytes | memoryview
        if is_in_memory:
            slot = self._slots[number]
            assert slot is not None  # the first message in it came with its file
            content = memoryview(slot)[:size]
        else:
            content = self._exactly(size)
        return Received(content, fds[-1] if has_fd else None)

    def give_credit(self) -> None:
        """Let the worker make one more message."""
        with suppress(ConnectionError):  # it has ended, which the next `receive` finds out
            self._socket.sendall(_CREDIT)

    def shut(self) -> None:
        """End the connection for all who have this end open; whoever waits for a message wakes."""
        with suppress(OSError):  # the other end is gone already
            self._socket.sendall(_END)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Shut the connection and close this end of it."""
        self.shut()
        self.leave()

    def leave(self) -> None:
        """Close this end in this process only, as a fork of the trainer does."""
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            if not part:
                raise EOFError("the worker process closed its connection")
            received += part
        return bytes(received)
