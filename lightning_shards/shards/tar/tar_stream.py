"""The samples of a tar that is read forward, such as a remote shard; nothing is read twice.

The walk is that of local files, so headers are checked, and an archive without its end is an error.
"""

import sys
from collections.abc import Generator, Iterator
from typing import BinaryIO, Final

from lightning_shards.shards.tar.blocks import BLOCK
from lightning_shards.shards.tar.walk import (
    Member,
    damaged,
    group_members,
    split_name,
    walk_members,
)

_AT_ONCE: Final = 64 << 20
_PASSED_OVER: Final = 1 << 20


class TarStream:
    """The bytes of a tar, asked for in order; only its first block may be asked for again.

    Its length is unknown until its end was read. It is taken for very large before.

    Args:
        stream: What is read, from its first byte on.
        url: The tar, for messages.
    """

    def __init__(self, stream: BinaryIO, url: str) -> None:
        self._stream, self._url = stream, url
        self._position = 0
        self._length = sys.maxsize
        self._first_block = self._read(BLOCK)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice, /) -> bytes:
        """The bytes of this part, which has a start and a stop; fewer if the tar ends before."""
        start, stop = part.start, part.stop
        if start < self._position and stop <= BLOCK:
            return self._first_block[start:stop]
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
        self._require_whole(offset, size, len(data))
        return data

    def pass_over(self, offset: int, size: int) -> None:
        """Read the bytes of a member without keeping them; errors as of `data`."""
        begin = offset
        while part := self[begin : min(offset + size, begin + _PASSED_OVER)]:
            begin += len(part)
        self._require_whole(offset, size, begin - offset)

    def _require_whole(self, offset: int, size: int, there: int) -> None:
        if there < size:
            what = f"is cut short or damaged: {size} bytes should follow, {there} do"
            raise damaged(what, self._url, offset - BLOCK)

    def _read(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size > 0:  # a damaged size must not take all memory at once
            pieces.append(self._stream.read(min(size, _AT_ONCE)))
            if not pieces[-1]:
                self._length = self._position
                break
            size -= len(pieces[-1])
            self._position += len(pieces[-1])
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
    tar = TarStream(stream, url)
    data: dict[int, bytes] = {}  # of members whose sample may go on, by their offsets
    for number, (key, members) in enumerate(group_members(_reading(tar, url, data), url)):
        if number >= skip:
            sample: dict[str, bytes | str] = {"__key__": key, "__url__": url}
            for suffix, member in members.items():
                sample[suffix] = data[member.offset]
            yield sample
        last = max(member.offset for member in members.values())
        for offset in [offset for offset in data if offset <= last]:
            del data[offset]


def _reading(tar: TarStream, url: str, data: dict[int, bytes]) -> Iterator[Member]:
    """The members that are in samples, whose bytes are read when they come by.

    Those of the last two samples are kept, as the one before is given when the next one begins.
    """
    key, begin = None, 0
    for member in walk_members(tar, url):
        name = split_name(member.name)
        if name is None:
            tar.pass_over(member.offset, member.size)
            continue
        if name[0] != key:
            for offset in [offset for offset in data if offset < begin]:
                del data[offset]
            key, begin = name[0], member.offset
        data[member.offset] = tar.data(member.offset, member.size)
        yield member
