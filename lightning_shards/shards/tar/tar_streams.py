"""The samples of a tar one after the other: of a file, or of a stream that is read forward."""

import sys
from collections.abc import Generator, Iterator
from itertools import islice
from typing import BinaryIO, Final

from lightning_shards.shards.tar.tar_bytes import open_tar
from lightning_shards.shards.tar.walk import (
    BLOCK,
    Member,
    damaged,
    group_members,
    split_name,
    walk_members,
)


def read_samples(url: str, skip: int = 0) -> Generator[dict[str, bytes | str]]:
    """The samples of a local tar in file order from number `skip` on.

    Only the headers of skipped samples are read. A sample is a dict as webdataset makes it: bytes
    by suffix, and `__key__` and `__url__`.

    Raises:
        ShardNotFoundError: There is no such file.
        FileAccessError: It is not a regular file, or cannot be opened.
        DamagedShardError: The file is not one whole tar archive, or was written to while it was
            read.
    """
    with open_tar(url) as data:
        for key, members in islice(group_members(walk_members(data, url), url), skip, None):
            sample: dict[str, bytes | str] = {"__key__": key, "__url__": url}
            for suffix, member in members.items():
                sample[suffix] = data[member.offset : member.offset + member.size]
            yield sample


_PASSED_OVER: Final = 1 << 20
_AT_ONCE: Final = 64 << 20  # a damaged size must not ask for all memory


class TarStream:
    """The bytes of a tar, asked for in order.

    Its length is unknown until its end was read. It is taken for very large before.

    Args:
        stream: What is read, from its first byte on.
        url: The tar, for messages.
    """

    def __init__(self, stream: BinaryIO, url: str) -> None:
        self._stream, self._url = stream, url
        self._position = 0
        self._length = sys.maxsize

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice, /) -> bytes:
        """The bytes of this part, which has a start and a stop; fewer if the tar ends before."""
        start, stop = part.start, part.stop
        while start > self._position:
            if not self._read(min(start - self._position, _PASSED_OVER)):
                return b""
        assert start == self._position  # the walk goes forward
        return self._read(stop - start)

    def data(self, offset: int, size: int) -> bytes:
        """The bytes of a member.

        Raises:
            DamagedShardError: The tar ends within it.
        """
        data = self[offset : offset + size]
        if len(data) < size:
            what = f"is cut short or damaged: {size} bytes should follow, {len(data)} do"
            raise damaged(what, self._url, offset - BLOCK)
        return data

    def _read(self, size: int) -> bytes:
        pieces = list[bytes]()
        while size and (piece := self._stream.read(min(size, _AT_ONCE))):
            pieces.append(piece)
            size -= len(piece)
            self._position += len(piece)
        if size:
            self._length = self._position
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def stream_samples(stream: BinaryIO, url: str, skip: int = 0) -> Generator[dict[str, bytes | str]]:
    """The samples of a tar in file order from number `skip` on, as of `read_samples`.

    Args:
        stream: The tar from its first byte on; what it raises is passed on.
        url: Its URL.
        skip: Samples to pass over; their bytes are read.

    Raises:
        DamagedShardError: The stream is not one whole tar archive.
    """
    data: dict[int, bytes] = {}  # of members whose sample may go on, by their offsets
    members_read = _reading(TarStream(stream, url), url, data)
    for number, (key, members) in enumerate(group_members(members_read, url)):
        if number >= skip:
            read = {suffix: data[member.offset] for suffix, member in members.items()}
            yield {"__key__": key, "__url__": url, **read}
        last = max(member.offset for member in members.values())
        for offset in [offset for offset in data if offset <= last]:
            del data[offset]


def _reading(tar: TarStream, url: str, data: dict[int, bytes]) -> Iterator[Member]:
    """The members that are in samples, whose bytes are read when they come by."""
    for member in walk_members(tar, url):
        if split_name(member.name) is not None:
            data[member.offset] = tar.data(member.offset, member.size)
            yield member
