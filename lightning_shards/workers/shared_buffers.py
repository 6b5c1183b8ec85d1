"""Buffers of shared memory between a worker process and the trainer, which are used again.

The first byte of a buffer says whether it is in use. A worker sets it when it begins a message, and
the trainer clears it when it holds no tensor of that message any more. A fork of the trainer that
goes on with a batch has to copy it, since the trainer alone says when a buffer is free.
"""

import mmap
import os
import resource
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import WorkerError
from lightning_shards.samples.arena import aligned

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


class SharedBuffers:
    """The buffers of one worker process, kept by that process.

    Args:
        count: Number of buffers; see `plan.footprint.buffers_per_worker`.
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
