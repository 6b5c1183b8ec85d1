"""The writer of tar shards: equal samples give equal bytes, and files appear whole or not at all.

Headers are plain USTAR without times, owners or other traces of the machine; a PAX header precedes
a member only if its name or size needs one. A shard is written under a temporary name, synced to
disk and renamed. Every name is checked: `walk.split_name` must give the key and the field from
which it was made.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lightning_shards.dataprep.writing.keys import check_field, check_key, check_member_name
from lightning_shards.errors import IndexMismatchError, SampleError
from lightning_shards.shards.beside import (
    WIDS,
    json_object,
    read_json,
    shard_entries,
    wids_entry,
    write_wids,
)
from lightning_shards.shards.files import await_lock, make_folder, new_file, open_folder
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.tar.blocks import BLOCK, up_to_block

Fields = Iterable[tuple[str, bytes]]
"""The members of a sample: field (the suffix of the member's name) and contents, in file order."""

_RECORD = 20 * BLOCK  # archives are padded with zeros to whole records, as by tar and tarfile
_MAX_NAME = 100
_MAX_SIZE = 8**11 - 1
_PAX_NAME = b"././@PaxHeader"
_MODE = 0o644

_OWNER = b"%07o\0%07o\0%07o\0" % (_MODE, 0, 0)  # mode, user, group
_TIME = b"%011o\0" % 0
_REGULAR, _PAX = b"0", b"x"
_TAIL = bytes(100) + b"ustar\x0000" + bytes(64 + 16 + 155 + 12)  # link, magic, names, devices
_FIXED_SUM = sum(_OWNER + _TIME + b" " * 8 + _TAIL)


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """One shard that was written.

    Attributes:
        name: File name.
        samples: Number of samples.
        size_bytes: Size of the file.
        md5: MD5 of the file, as in the wids JSON; it protects against accidents only.
        fields: How many samples have each field, by name in order.
    """

    name: str
    samples: int
    size_bytes: int
    md5: str
    fields: dict[str, int]


class TarWriter:
    """Writes samples to one open tar file, which the caller closes.

    Attributes:
        samples: Samples written so far.
        position: bytes written so far.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.md5(usedforsecurity=False)
        self._fields: Counter[str] = Counter()
        self.samples = 0
        self.position = 0

    def write(self, key: str, fields: Fields) -> None:
        """Add one sample.

        Raises:
            SampleError: The names could not be read back as this key and these fields.
        """
        check_key(key)
        written: set[str] = set()
        for field, data in fields:
            check_field(field)
            check_member_name(key, field)
            if field in written:
                raise SampleError(f"sample {key!r} has two members for the field {field!r}")
            written.add(field)
            self._put(member_header(f"{key}.{field}", len(data)))
            self._put(data)
            self._put(bytes(-len(data) % BLOCK))
        if not written:
            raise SampleError(f"sample {key!r} has no field; a sample needs one at least")
        self.samples += 1
        self._fields.update(written)

    def finish(self, name: str) -> WrittenShard:
        """Write the end marker, and return the shard under this name."""
        end = 2 * BLOCK
        self._put(bytes(end + -(self.position + end) % _RECORD))
        fields = dict(sorted(self._fields.items()))
        return WrittenShard(name, self.samples, self.position, self._digest.hexdigest(), fields)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.position += len(data)


def write_shard(path: Path, samples: Iterable[tuple[str, Fields]]) -> WrittenShard:
    """Write keys and fields to a tar that appears whole or not at all.

    Raises:
        SampleError: A sample could not be read back as it is.
        FileAccessError: The file cannot be written; no part of it is left.
    """
    make_folder(path.parent)
    with new_file(path) as file:
        writer = TarWriter(file)
        for key, fields in samples:
            writer.write(key, fields)
        return writer.finish(path.name)


def read_back(path: Path, shard: WrittenShard, tables: TableStore) -> None:
    """Make the member table of a shard that was written, by reading it.

    Raises:
        IndexMismatchError: It has other samples or fields than were written.
        DamagedShardError: It is not one whole tar archive.
    """
    table = tables.table_of(path, expected_samples=shard.samples)
    counts = np.bincount(table.suffix_ids, minlength=len(table.suffixes)).tolist()
    fields = dict(sorted(zip(table.suffixes, counts, strict=True)))
    if fields != shard.fields:
        raise IndexMismatchError(
            f"{path} was written with the members {shard.fields} and reads back as {fields}; look "
            "after its disk, and write it again"
        )


def list_shards(folder: Path, shards: Sequence[WrittenShard]) -> None:
    """Write the wids JSON of these shards of the folder in one step.

    What `index` has put into it since an earlier run stays: names of tables, and other shards that
    are there.
    """
    with open_folder(folder) as held:
        await_lock(held)
        earlier = _entries_before(folder / WIDS)
        entries = {name: entry for name, entry in earlier.items() if (folder / name).exists()}
        for shard in shards:
            entry = wids_entry(shard.name, shard.samples, shard.size_bytes, shard.md5)
            if not entry.items() <= entries.get(shard.name, {}).items():
                entries[shard.name] = entry
        if entries != earlier:
            write_wids(folder / WIDS, list(entries.values()))


def _entries_before(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of the wids JSON that is there, by URL; none if it is no such file."""
    content = read_json(path)
    if json_object(content).get("wids_version") != 1:
        return {}
    return {str(entry.get("url")): entry for entry in shard_entries(content) or ()}


def tar_size(size: int) -> int:
    """Bytes that a member of this size takes in a tar, without an extended header."""
    return BLOCK + up_to_block(size)


def as_bytes(data: object, key: str, field: str) -> bytes:
    """The bytes that are stored for a user's value of a member.

    Raises:
        SampleError: The value is neither bytes nor text, or text that UTF-8 cannot hold.
    """
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise SampleError(f"sample {key!r}: {field!r} cannot be stored: {error}") from error
    if isinstance(data, bytes):
        return data
    raise SampleError(
        f"sample {key!r}: {field!r} must be bytes or str, not {type(data).__name__}; encode it"
    )


def member_header(name: str, size: int) -> bytes:
    """The header block or blocks that precede the data of a member."""
    encoded = name.encode()
    if len(encoded) <= _MAX_NAME and size <= _MAX_SIZE and name.isascii():
        return _block(encoded, size, _REGULAR)
    records = b"" if size <= _MAX_SIZE else _pax_record(b"size", b"%d" % size)
    if len(encoded) > _MAX_NAME or not name.isascii():
        records = _pax_record(b"path", encoded) + records
    extended = _block(_PAX_NAME, len(records), _PAX) + records + bytes(-len(records) % BLOCK)
    stand_in = name.encode("ascii", "replace")[:_MAX_NAME]
    return extended + _block(stand_in, size if size <= _MAX_SIZE else 0, _REGULAR)


def _block(name: bytes, size: int, kind: bytes) -> bytes:
    digits = b"%011o\0" % size
    checksum = b"%06o\0 " % (_FIXED_SUM + sum(name) + sum(digits) + kind[0])
    return b"".join((name.ljust(_MAX_NAME, b"\0"), _OWNER, digits, _TIME, checksum, kind, _TAIL))


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    """`LENGTH keyword=value` and a newline, where the length counts its own digits."""
    rest = len(keyword) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, keyword, value)
