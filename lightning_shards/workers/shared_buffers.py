"""Shared memory between a worker process and the trainer, used again and again.

The first byte of a buffer says whether it is in use. A worker sets it when it begins a message, the
trainer clears it when it holds no tensor of that message any more.

Which buffers the trainer has open is kept in this module and not passed on: messages are unpickled
by multiprocessing and, where torch pins them, in a thread of torch's that calls `pin_memory()` with
no argument. Neither can be handed anything.
"""

import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import WorkerError
from lightning_shards.samples.arena import aligned

_HEADER = aligned(1)
"""Bytes before the content of a buffer: the flag, and room to align what follows."""

_Name: TypeAlias = tuple[int, int]
"""Process id of the worker, and number of the buffer."""

SHARED_FOLDER = Path("/dev/shm")  # noqa: S108 files in it are memory; Linux has it there


class SharedBuffer:
    """A piece of shared memory.

    It is pickled as a whole once, and later as its name: to open it costs a millisecond.

    Args:
        fd: of a file in memory.
        name: None for one that is used once.
    """

    def __init__(self, fd: int, name: _Name | None = None) -> None:
        self._fd, self._name, self._is_known = fd, name, False
        self._bytes: NDArray[np.uint8] = np.frombuffer(mmap.mmap(fd, 0), np.uint8)

    @classmethod
    def new(cls, size: int, name: _Name | None = None) -> "SharedBuffer":
        """A buffer with content of so many bytes. Its file has no name: nothing is ever left of it.

        Raises:
            WorkerError: there is no memory for it.
        """
        folder = SHARED_FOLDER if SHARED_FOLDER.is_dir() else None
        try:
            file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 closed with the buffer
            try:
                # memory that is missing would end the process when it is first written to
                os.posix_fallocate(file.fileno(), 0, _HEADER + size)
                buffer = cls(file.fileno(), name)
            except BaseException:
                file.close()
                raise
        except OSError as error:
            raise WorkerError(_no_memory(size, error)) from error
        weakref.finalize(buffer, file.close)
        return buffer

    @property
    def content(self) -> NDArray[np.uint8]:
        """What may be written to."""
        return self._bytes[_HEADER:]

    @property
    def is_in_use(self) -> bool:
        """Whether a message lies in it."""
        return bool(self._bytes[0])

    @is_in_use.setter
    def is_in_use(self, value: bool) -> None:
        self._bytes[0] = value

    def __reduce__(self) -> tuple[Any, ...]:
        file = None if self._is_known else DupFd(self._fd)
        self._is_known = self._name is not None
        return _received, (file, self._name)


def _no_memory(size: int, error: OSError) -> str:
    free = shutil.disk_usage(SHARED_FOLDER if SHARED_FOLDER.is_dir() else "/").free
    mib = 2**20
    return (
        f"no shared memory for a message of {size / mib:,.1f} MiB ({error}; {SHARED_FOLDER} has "
        f"{free / mib:,.1f} MiB free): enlarge it (docker run --shm-size), lower prefetch_factor, "
        "num_workers or batch_size, or take pool='threads', which needs none"
    )


_open_buffers: dict[_Name, SharedBuffer] = {}
"""What workers sent to this process."""


def _received(file: Any, name: _Name | None) -> SharedBuffer:
    if file is None:
        assert name is not None  # what has no name is sent as a file
        return _open_buffers[name]
    fd = file.detach()
    try:
        buffer = SharedBuffer(fd, name)
    finally:
        os.close(fd)  # the map has its own
    if name is not None:
        _open_buffers[name] = buffer
    return buffer


def forget_buffers(pids: Iterable[int | None]) -> None:
    """Close what these workers sent; tensors that lie in it keep it."""
    workers = set(pids)
    for name in list(_open_buffers):  # a copy: torch's thread for pinned memory may add some
        if name[0] in workers:
            del _open_buffers[name]


class SharedBuffers:
    """The buffers of the worker that this process is.

    Args:
        count: see `plan.footprint.buffers_per_worker`.
    """

    def __init__(self, count: int) -> None:
        self._buffers: list[SharedBuffer | None] = [None] * count
        self._turn = 0

    def take(self, size: int) -> SharedBuffer:
        """A free buffer with room for so many bytes, in use from now on."""
        for _ in self._buffers:
            self._turn = (self._turn + 1) % len(self._buffers)
            buffer = self._buffers[self._turn]
            if buffer is None or not buffer.is_in_use:
                break
        else:
            return SharedBuffer.new(size)
        if buffer is None or len(buffer.content) < size:
            buffer = self._buffers[self._turn] = SharedBuffer.new(size, (os.getpid(), self._turn))
        buffer.is_in_use = True
        return buffer


class Lease:
    """The content of a buffer for as long as an array or a tensor shares its memory.

    ``numpy.asarray(lease)`` gives it; what is cut out of that keeps the lease. When the last of it
    is gone, the buffer is not in use any more.
    """

    def __init__(self, buffer: SharedBuffer) -> None:
        self._buffer, self._pid = buffer, os.getpid()
        self.__array_interface__ = buffer.content.__array_interface__

    def __del__(self) -> None:
        if os.getpid() == self._pid:  # a fork of the trainer drops it, too
            self._buffer.is_in_use = False
