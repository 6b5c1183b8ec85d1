"""DALI's index of a shard (`wds2idx`, v1.2) as a member table without crc32s.

It is text, and says nothing about which bytes it was made from::

    v1.2 2
    cls 512 1 a.cls jpg 1536 602 a.jpg
    cls 4096 1 b.cls jpg 5120 602 b.jpg

So it is believed only if all of its members lie behind each other within the shard, if the headers
of the first and the last one are where it says, and if the shard ends behind the last one.
"""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lightning_shards.errors import DamagedShardError, FileAccessError
from lightning_shards.shards.beside import MAX_INDEX_BYTES
from lightning_shards.shards.members import ENCODING, MemberTable, table_of_samples
from lightning_shards.shards.regular_files import is_newer, read_regular
from lightning_shards.shards.storage.protocol import Storage
from lightning_shards.shards.table_bytes import UnusableTableError
from lightning_shards.shards.tar.blocks import BLOCK, up_to_block
from lightning_shards.shards.tar.plain_runs import run_of
from lightning_shards.shards.tar.tar_bytes import TarBytes, open_tar
from lightning_shards.shards.tar.walk import Member, group_members, walk_members
from lightning_shards.shards.urls import is_local, redact, split_url, url_beside

_VERSION: Final = "v1.2"
_WITHOUT_NAMES: Final = "v1.1"
_FIELDS: Final = 4  # extension, offset, size, name
_NUMBER = re.compile(r"[0-9]{1,18}")
_WHOLE_NAME: Final = 97
"""Bytes of a name up to which it stands in the header as it is, if it is ASCII."""

_MOST_SHOWN: Final = 40

_log = logging.getLogger(__name__)


class UnusableIndexError(FileAccessError):
    """DALI's index of a shard cannot stand for its member table; the message says why."""


def dali_url(url: str) -> str:
    """Where DALI's index of a remote shard lies.

    >>> dali_url("https://host/data/000.a.tar?sig=1")
    'https://host/data/000.idx?sig=1'
    """
    return url_beside(url, split_url(url)[1].partition(".")[0] + ".idx")


def local_dali_index(shard: str) -> Path:
    """Where DALI's index of a local shard lies."""
    path = Path(shard)
    return path.with_name(path.name.partition(".")[0] + ".idx")


def own_dali_name(shard: str) -> str:
    """What a shard's table by DALI's index is kept for: that index may be of another one, too.

    `a.0.tar` and `a.1.tar` have the same `a.idx`, and may have one size and time of change.
    """
    return f"{shard}.idx"


def local_dali_table(shard: str, storage: Storage) -> MemberTable | None:
    """The table by DALI's index of a local shard; None if there is none that can be used."""
    index = local_dali_index(shard)
    if not is_local(shard) or not is_newer(index, Path(shard)):
        return None
    try:
        data = read_regular(index, MAX_INDEX_BYTES)
        return dali_table(data, shard, storage, source=str(index))
    except FileAccessError as error:
        _log.info("the headers of %s are read: %s", shard, error)
        return None


def dali_table(data: bytes, url: str, storage: Storage, *, source: str) -> MemberTable:
    """The member table that DALI's index stands for.

    Args:
        data: All bytes of the index.
        url: The shard.
        storage: What reads it.
        source: Path or URL of the index, for messages.

    Raises:
        UnusableIndexError: It cannot be read, or is not of this shard.
        ShardError: The shard cannot be read.
    """
    try:
        members = list(_members(data.decode(*ENCODING)))
        with open_tar(url, storage) as tar:
            _require_order(members, len(tar))
            _require_header(tar, url, members[0])
            _require_header(tar, url, members[-1])
            _require_end(tar, url, _end_of(members[-1]))
            stamp = tar.stat
        return table_of_samples(run_of(group_members(members, redact(url)), len(tar)), stamp, None)
    except (UnusableTableError, DamagedShardError) as error:
        raise UnusableIndexError(
            f"DALI's index {redact(source)} cannot stand for a member table: {error}; make it "
            "again by `wds2idx`, or member tables by `lightning-shards index --format wids,members`"
        ) from None


def _members(text: str) -> Iterator[Member]:
    """The members in an index, in its order."""
    header, *lines = text.split("\n")
    version, _, count = header.partition(" ")
    if version == _WITHOUT_NAMES:
        raise UnusableTableError(
            f"version {_WITHOUT_NAMES} has no names of members, so samples would have no keys"
        )
    if version != _VERSION or not _NUMBER.fullmatch(count) or lines[-1:] != [""]:
        raise UnusableTableError(f"it is cut short, or no index of DALI's version {_VERSION}")
    if int(count) != len(lines) - 1 or not int(count):
        raise UnusableTableError(f"it says {count} samples, and has {len(lines) - 1:,} lines")
    for number, line in enumerate(lines[:-1], 2):
        yield from _members_of(line, number)


def _members_of(line: str, number: int) -> Iterator[Member]:
    """The members of the sample in this line."""
    words = line.split(" ")
    if len(words) % _FIELDS:
        raise UnusableTableError(
            f"line {number} is no list of extensions, offsets, sizes and names, and a name with a "
            "space cannot be written there"
        )
    keys: set[str] = set()
    for extension, offset, size, name in zip(*[iter(words)] * _FIELDS, strict=True):
        if not (_NUMBER.fullmatch(offset) and _NUMBER.fullmatch(size)):
            raise UnusableTableError(
                f"line {number} has {offset[:_MOST_SHOWN]!r} and {size[:_MOST_SHOWN]!r} where "
                "offset and size of a member should be"
            )
        keys.add(name.removesuffix(f".{extension}"))
        if name in keys or len(keys) > 1:
            raise UnusableTableError(
                f"line {number} has {name[:_MOST_SHOWN]!r} among the members of one sample"
            )
        yield Member(name, int(offset), int(size))


def _require_order(members: list[Member], size: int) -> None:
    """Check that each member has room for its header behind the one before, within the shard."""
    end = 0
    for member in members:
        if member.offset % BLOCK or member.offset < end + BLOCK:
            raise UnusableTableError(
                f"{member.name!r} cannot begin at byte {member.offset}, where the member before "
                f"ends at {end}"
            )
        end = _end_of(member)
        if end > size:
            raise UnusableTableError(
                f"{member.name!r} would end at byte {member.offset + member.size}, and the shard "
                f"has {size}"
            )


def _require_header(tar: TarBytes, url: str, member: Member) -> None:
    found = next(walk_members(tar, url, member.offset - BLOCK), None)
    is_whole = len(member.name) < _WHOLE_NAME and member.name.isascii()
    if (
        found is None
        or (found.offset, found.size) != (member.offset, member.size)
        or (is_whole and found.name != member.name)
    ):
        raise UnusableTableError(
            f"at byte {member.offset - BLOCK} of the shard is no header of {member.name!r} with "
            f"{member.size} bytes, so the index is of another shard or an older one"
        )


def _require_end(tar: TarBytes, url: str, end: int) -> None:
    following = next(walk_members(tar, url, end), None)
    if following is not None:
        raise UnusableTableError(
            f"the shard goes on with {following.name!r} behind the last member of the index"
        )


def _end_of(member: Member) -> int:
    return up_to_block(member.offset + member.size)
