"""The catalog of the samples to be written, with the current location of their members' bytes.

A member is a stretch of a file: of a tar, or of a file with nothing else in it. A member that is in
no file, such as a label or a caption, is a stretch of one blob in the catalog. So one plan and one
writer serve every kind of input. The catalog has columns and not objects: about 100 bytes a sample.
"""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.dataprep.input_files import UNKNOWN, InputExtent, InputFile, input_file_at
from lightning_shards.dataprep.writing.keys import check_field, check_key, check_member_name

INLINE: Final = 0
"""The number of the blob among the sources."""

_WORDS = 3
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """Samples in the order in which they were listed.

    Attributes:
        sources: The files; source number i of a member is `sources[i - 1]`, number 0 is the blob.
        blob: Contents of the members that are in no file.
        keys: All keys, concatenated.
        key_starts: Start of each key in `keys`, and the end, int64, shape (num_samples + 1,).
        sample_starts: The members of sample i are `sample_starts[i]` to `sample_starts[i + 1]`.
        member_sources: Number of the source of each member, int64, shape (num_members,).
        offsets: Offset of each member's bytes in the source, int64, shape (num_members,).
        sizes: Size of each member in bytes, int64, shape (num_members,).
        crc32s: Crc32 of each member by an earlier index, or `UNKNOWN`, int64, shape (num_members,).
        field_ids: Position of each member's field in `fields`, int64, shape (num_members,).
        fields: The different fields.
        split_ids: Position of each sample's split in `splits`, int64; -1 if it has none.
        splits: The different splits that the input names.
    """

    sources: list[InputFile]
    blob: bytes
    keys: bytes
    key_starts: NDArray[np.int64]
    sample_starts: NDArray[np.int64]
    member_sources: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    crc32s: NDArray[np.int64]
    field_ids: NDArray[np.int64]
    fields: tuple[str, ...]
    split_ids: NDArray[np.int64]
    splits: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.key_starts) - 1

    def key(self, sample: int) -> str:
        """The key of a sample."""
        start, stop = self.key_starts[sample : sample + 2].tolist()
        return self.keys[start:stop].decode()

    def extents(self, sample: int) -> list[InputExtent]:
        """The members of a sample, in file order."""
        start, stop = self.sample_starts[sample : sample + 2].tolist()
        columns = (self.field_ids, self.member_sources, self.offsets, self.sizes, self.crc32s)
        rows = zip(*(column[start:stop].tolist() for column in columns), strict=True)
        return [self._extent(*row) for row in rows]

    def num_members(self) -> NDArray[np.int64]:
        """Number of members of each sample, shape (num_samples,)."""
        return np.diff(self.sample_starts)

    def source_of(self, sample: int) -> str:
        """The file that the sample's first member is in; empty if it is in no file."""
        number = int(self.member_sources[self.sample_starts[sample]])
        return self.sources[number - 1].path if number else ""

    def field_counts(self) -> dict[str, int]:
        """How many samples have each field."""
        counts = np.bincount(self.field_ids, minlength=len(self.fields)).tolist()
        return dict(sorted(zip(self.fields, counts, strict=True)))

    def words(self, seed: int) -> NDArray[np.uint64]:
        """Three random words a sample, from its key and the seed alone, shape (num_samples, 3).

        So a sample's position in a shuffle and its split do not depend on the order of listing.
        """
        salt = seed.to_bytes(_WORD_BYTES, "little")
        length = _WORDS * _WORD_BYTES
        drawn = bytearray()
        bounds = self.key_starts.tolist()
        for start, stop in pairwise(bounds):
            drawn += hashlib.blake2b(self.keys[start:stop], digest_size=length, key=salt).digest()
        return np.frombuffer(bytes(drawn), "<u8").reshape(-1, _WORDS)

    def with_field(self, name: str, values: Sequence[bytes]) -> "Catalog":
        """The same samples with one more member each, which is the last one and in no file."""
        fields = self.fields if name in self.fields else (*self.fields, name)
        lengths = np.array([len(value) for value in values], np.int64)
        ends = self.sample_starts[1:]
        added = {
            "member_sources": np.full(len(self), INLINE, np.int64),
            "offsets": np.cumsum(lengths) - lengths + len(self.blob),
            "sizes": lengths,
            "crc32s": np.full(len(self), UNKNOWN, np.int64),
            "field_ids": np.full(len(self), fields.index(name), np.int64),
        }
        return replace(
            self,
            blob=self.blob + b"".join(values),
            fields=fields,
            sample_starts=self.sample_starts + np.arange(len(self) + 1),
            **{
                column: np.insert(getattr(self, column), ends, new) for column, new in added.items()
            },
        )

    def fingerprint(self) -> str:
        """The identity of these samples, members and files: 16 hex digits."""
        digest = hashlib.sha256()
        for part in (self.sources, self.fields, self.splits):
            digest.update(repr(part).encode("utf-8", "backslashreplace"))
        for data in (self.blob, self.keys):
            digest.update(len(data).to_bytes(_WORD_BYTES, "little") + data)
        for column in (self.key_starts, self.sample_starts, self.member_sources, self.offsets):
            digest.update(column.tobytes())
        for column in (self.sizes, self.field_ids, self.split_ids):
            digest.update(column.tobytes())
        return digest.hexdigest()[:16]

    def _extent(
        self, field_id: int, source: int, offset: int, size: int, crc32: int
    ) -> InputExtent:
        name = self.fields[field_id]
        if source == INLINE:
            return InputExtent(name, None, 0, size, self.blob[offset : offset + size])
        return InputExtent(name, self.sources[source - 1], offset, size, b"", crc32)


@dataclass(slots=True)
class CatalogBuilder:
    """Builds a catalog sample by sample: `begin` a sample, then add its members."""

    _sources: list[InputFile] = field(default_factory=list[InputFile])
    _blob: bytearray = field(default_factory=bytearray)
    _key: str = ""
    _keys: bytearray = field(default_factory=bytearray)
    _key_starts: "array[int]" = field(default_factory=lambda: array("q", [0]))
    _sample_starts: "array[int]" = field(default_factory=lambda: array("q", [0]))
    _members: "array[int]" = field(default_factory=lambda: array("q"))  # five numbers each
    _fields: dict[str, int] = field(default_factory=dict[str, int])
    _split_ids: "array[int]" = field(default_factory=lambda: array("q"))
    _splits: dict[str, int] = field(default_factory=dict[str, int])

    def add_source(self, path: str) -> int:
        """Add a file in its current state, and return its number.

        Raises:
            ShardNotFoundError: There is no such file.
        """
        self._sources.append(input_file_at(path))
        return len(self._sources)

    def begin(self, key: str, split: str | None = None) -> None:
        """Begin a sample.

        Raises:
            SampleError: The key could not be read back from a tar.
        """
        check_key(key)
        self._key = key
        self._keys += key.encode()
        self._key_starts.append(len(self._keys))
        self._sample_starts.append(self._sample_starts[-1])
        number = -1 if split is None else self._splits.setdefault(split, len(self._splits))
        self._split_ids.append(number)

    def add_extent(
        self, name: str, source: int, offset: int, size: int, crc32: int = UNKNOWN
    ) -> None:
        """Add a member that is in a file.

        Raises:
            SampleError: The field could not be read back from a tar.
        """
        check_field(name)
        check_member_name(self._key, name)
        number = self._fields.setdefault(name, len(self._fields))
        self._members.extend((number, source, offset, size, crc32))
        self._sample_starts[-1] += 1

    def add_file(self, name: str, path: str) -> None:
        """Add a member that is a whole file."""
        number = self.add_source(path)
        self.add_extent(name, number, 0, self._sources[-1].size_bytes)

    def add_inline(self, name: str, data: bytes) -> None:
        """Add a member with this content."""
        self.add_extent(name, INLINE, len(self._blob), len(data))
        self._blob += data

    def build(self) -> Catalog:
        """The catalog of all samples that were added."""
        members = np.frombuffer(self._members, np.int64).reshape(-1, 5)
        return Catalog(
            sources=self._sources,
            blob=bytes(self._blob),
            keys=bytes(self._keys),
            key_starts=np.frombuffer(self._key_starts, np.int64),
            sample_starts=np.frombuffer(self._sample_starts, np.int64),
            member_sources=members[:, 1].copy(),
            offsets=members[:, 2].copy(),
            sizes=members[:, 3].copy(),
            crc32s=members[:, 4].copy(),
            field_ids=members[:, 0].copy(),
            fields=tuple(self._fields),
            split_ids=np.frombuffer(self._split_ids, np.int64),
            splits=tuple(self._splits),
        )


def join_catalogs(catalogs: Sequence[Catalog]) -> Catalog:
    """One catalog with the samples of all, in the order of the catalogs."""
    fields = tuple(dict.fromkeys(name for catalog in catalogs for name in catalog.fields))
    splits = tuple(dict.fromkeys(name for catalog in catalogs for name in catalog.splits))
    columns: dict[str, list[NDArray[np.int64]]] = {}
    num_sources = blob_bytes = 0
    for catalog in catalogs:
        is_inline = catalog.member_sources == INLINE
        moved = {
            "key_starts": np.diff(catalog.key_starts),
            "sample_starts": np.diff(catalog.sample_starts),
            "member_sources": np.where(is_inline, INLINE, catalog.member_sources + num_sources),
            "offsets": np.where(is_inline, catalog.offsets + blob_bytes, catalog.offsets),
            "sizes": catalog.sizes,
            "crc32s": catalog.crc32s,
            "field_ids": _renumbered(catalog.field_ids, catalog.fields, fields),
            "split_ids": _renumbered(catalog.split_ids, catalog.splits, splits),
        }
        for name, values in moved.items():
            columns.setdefault(name, []).append(values)
        num_sources += len(catalog.sources)
        blob_bytes += len(catalog.blob)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    for name in ("key_starts", "sample_starts"):
        joined[name] = np.concatenate([np.zeros(1, np.int64), np.cumsum(joined[name])])
    return Catalog(
        sources=[source for catalog in catalogs for source in catalog.sources],
        blob=b"".join(catalog.blob for catalog in catalogs),
        keys=b"".join(catalog.keys for catalog in catalogs),
        fields=fields,
        splits=splits,
        **joined,
    )


def _renumbered(
    numbers: NDArray[np.int64], old: Sequence[str], new: Sequence[str]
) -> NDArray[np.int64]:
    """Positions in `old` as positions in `new`; -1 stays."""
    positions = {name: number for number, name in enumerate(new)}
    return np.array([positions[name] for name in old] + [-1], np.int64)[numbers]
