"""Keys of samples: fixed parts of them by a hash, and lists of those to leave out.

The hash of a key is the SHA-256 of its bytes as they are in the tar (UTF-8, as a rule). Its part is
the first 8 bytes, read as a big-endian number, modulo the number of parts, the same in every run
and in any program::

    int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % of

A list is a text file with a key, or the id of a sample, on each line. A line is a key as it is in
the tar; or `#FILE:NUMBER`, the sample with this number (from 0) in the shard with this file name. A
key that begins with `#` or a backslash has a backslash before it. Empty lines are passed over.

A list of 10^7 keys takes 160 MB as it is held, and four times as much while it is read: of each
key 16 bytes of its SHA-256 are kept. That another key has the same ones is out of the question.
"""

import hashlib
import os
from array import array
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, FileAccessError, ShardNotFoundError
from lightning_shards.shards.files import open_regular
from lightning_shards.shards.members import MemberTable

_WORDS: Final = np.dtype(">u8")
_DIGEST_BYTES: Final = 16
MAX_PARTS: Final = 2**32
"""More parts would not be equally large by a hash of 64 bits."""


def digests_of(keys: Iterable[bytes]) -> NDArray[np.uint64]:
    """The first 16 bytes of the SHA-256 of each key, as two numbers: uint64, shape (n, 2)."""
    joined = b"".join(sha256(key).digest()[:_DIGEST_BYTES] for key in keys)
    return np.frombuffer(joined, _WORDS).astype(np.uint64).reshape(-1, 2)


def keys_of_table(table: MemberTable) -> list[bytes]:
    """The keys of all samples of a shard."""
    keys = table.keys.tobytes()
    return [keys[start:stop] for start, stop in pairwise(table.key_starts.tolist())]


def prefix_of(key: bytes) -> bytes:
    """The part of a key before its first dot, without a leading ``./``."""
    return key.removeprefix(b"./").partition(b".")[0]


@dataclass(frozen=True, slots=True)
class HashParts:
    """Some of the equal parts that samples are divided into by the hash of their keys.

    Attributes:
        hash_of: ``key``, or ``prefix``: the part of the key before its first dot, without a leading
            ``./``, so that samples with one prefix stay together.
        of: Number of parts.
        parts: The numbers of those that are meant, from 0 to `of` - 1.
    """

    hash_of: str
    of: int
    parts: tuple[int, ...]

    def has(self, keys: Iterable[bytes]) -> NDArray[np.bool_]:
        """Whether each of these keys is in one of the parts."""
        if self.hash_of == "prefix":
            keys = map(prefix_of, keys)
        numbers = digests_of(keys)[:, 0] % np.uint64(self.of)
        return np.isin(numbers, np.array(self.parts, np.uint64))


def parse_parts(name: str, given: Mapping[str, Any]) -> HashParts:
    """The parts that a mapping names; `name` is the setting that has it.

    Raises:
        ConfigError: A key is missing or unknown, or a value is out of its range.
    """
    if set(given) != {"hash_of", "of", "parts"}:
        raise ConfigError(
            f"{name} takes the keys hash_of, of and parts, as in {{hash_of: key, of: 20, parts: "
            f"[0]}}, got {sorted(map(str, given))}"
        )
    hash_of, of, parts = given["hash_of"], given["of"], given["parts"]
    if hash_of not in ("key", "prefix"):
        raise ConfigError(f"hash_of of {name} must be 'key' or 'prefix', got {hash_of!r}")
    if type(of) is not int or not 1 <= of <= MAX_PARTS:
        raise ConfigError(
            f"of of {name} must be a number of parts from 1 to {MAX_PARTS}, got {of!r}"
        )
    if not isinstance(parts, list | tuple) or not parts:
        raise ConfigError(f"parts of {name} must be a list of numbers, as in [0, 1], got {parts!r}")
    numbers: set[int] = set()
    for part in cast("Sequence[object]", parts):
        if type(part) is not int or not 0 <= part < of:
            raise ConfigError(
                f"parts of {name} must be numbers from 0 to {of - 1}, as of={of}, got {part!r}"
            )
        numbers.add(part)
    return HashParts(hash_of, of, tuple(sorted(numbers)))


_Words = NDArray[np.uint64]
_Ints = NDArray[np.int64]

_ID_MARK = b"#"
_ESCAPE = b"\\"
_LINES_AT_ONCE = 2**16
_HEAD_BYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class KeyList:
    """Keys by their digests, and samples by shard and number.

    Attributes:
        first: First words of the digests of the keys, ascending, uint64.
        second: Their second words.
        most_alike: How many digests at most have one first word; nearly always 1.
        numbers: By file name of a shard, the numbers of samples in it, int64, ascending.
    """

    first: _Words
    second: _Words
    most_alike: int
    numbers: Mapping[str, _Ints]

    def find(self, digests: _Words) -> _Ints:
        """The number in the list of each of these digests, shape (n, 2); -1 for those not in it."""
        found = np.full(len(digests), -1, np.int64)
        if not len(self.first):
            return found
        starts = np.searchsorted(self.first, digests[:, 0])
        for step in range(self.most_alike):
            places = np.minimum(starts + step, len(self.first) - 1)
            is_equal = self.first[places] == digests[:, 0]
            is_equal &= self.second[places] == digests[:, 1]
            found[is_equal] = places[is_equal]
        return found


def read_key_list(path: str, shard_name: str = "") -> KeyList:
    """The keys and ids in a file; `shard_name` is that of some shard, for messages.

    Raises:
        ConfigError: The file cannot be read, or a line is no id although it begins like one.
    """
    digests: list[_Words] = []
    numbers: dict[bytes, array[int]] = {}
    with os.fdopen(open_list(path), "rb") as file:
        head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES]
        if head.startswith((BOM_UTF16_BE, BOM_UTF16_LE)) and b"\0" in head:  # as no key has
            raise ConfigError(f"exclude: {path} is written in UTF-16; write it in UTF-8")
        for entries in _batches(file):
            for entry in entries:
                if entry[:1] == _ID_MARK:
                    name, number = _parse_id(entry, path, shard_name)
                    numbers.setdefault(name, array("q")).append(number)
            digests.append(digests_of(_keys_among(entries)))
    by_name = {
        os.fsdecode(name): np.unique(np.array(listed, np.int64)) for name, listed in numbers.items()
    }
    return _key_list(np.concatenate([np.empty((0, 2), np.uint64), *digests]), by_name)


def first_unmatched(path: str, listed: KeyList, matched: NDArray[np.bool_]) -> bytes:
    """The first key of a file that is not among those that were matched; empty if all are.

    Args:
        path: Of the file, which is read again.
        listed: What was read of it.
        matched: For each key of `listed`, whether it was matched.

    Raises:
        ConfigError: The file cannot be read.
    """
    with os.fdopen(open_list(path), "rb") as file:
        for entries in _batches(file):
            keys = _keys_among(entries)
            for key, place in zip(keys, listed.find(digests_of(keys)).tolist(), strict=True):
                if place < 0 or not matched[place]:
                    return key
    return b""


def _batches(file: BinaryIO) -> Iterator[list[bytes]]:
    """The lines of a file that are not empty, many at a time."""
    if file.read(len(BOM_UTF8)) != BOM_UTF8:
        file.seek(0)
    while lines := list(islice(file, _LINES_AT_ONCE)):
        yield list(filter(None, (line.rstrip(b"\r\n") for line in lines)))


def _keys_among(entries: Iterable[bytes]) -> list[bytes]:
    """The keys among these lines, without the backslash that takes the meaning of a mark."""
    escaped = (_ESCAPE + _ID_MARK, _ESCAPE + _ESCAPE)
    keys = (entry for entry in entries if entry[:1] != _ID_MARK)
    return [key[1:] if key[:2] in escaped else key for key in keys]


def digest_of_list(path: str) -> str:
    """The SHA-256 of a file's content, in hex digits.

    Raises:
        ConfigError: The file cannot be read.
    """
    with os.fdopen(open_list(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_of_lists(lists: Iterable[KeyList]) -> str:
    """A hash of what is in these lists together, in whatever order, in hex digits."""
    digests, numbers = [np.empty((0, 2), np.uint64)], dict[str, list[_Ints]]()
    for listed in lists:
        digests.append(np.stack((listed.first, listed.second), axis=1))
        for name, of_shard in listed.numbers.items():
            numbers.setdefault(name, []).append(of_shard)
    keys = _key_list(np.concatenate(digests), {})
    content = hashlib.sha256(keys.first.tobytes() + keys.second.tobytes())
    for name, parts in sorted(numbers.items()):
        of_shard = np.unique(np.concatenate(parts))
        content.update(os.fsencode(f"{name}\0{len(of_shard)}\0") + of_shard.tobytes())
    return content.hexdigest()


def _key_list(digests: _Words, numbers: Mapping[str, _Ints]) -> KeyList:
    digests = digests[np.argsort(digests[:, 0], kind="stable")]
    is_alike = digests[1:, 0] == digests[:-1, 0]
    # Of keys with equal digests, which are the same key, any one will do; others are very rare.
    is_new = np.ones(len(digests), np.bool_)
    is_new[1:] = ~is_alike | (digests[1:, 1] != digests[:-1, 1])
    digests = digests[is_new]
    alike = digests[1:, 0] == digests[:-1, 0]
    first, second = np.ascontiguousarray(digests[:, 0]), np.ascontiguousarray(digests[:, 1])
    return KeyList(first, second, 1 + int(np.count_nonzero(alike)), numbers)


def _parse_id(entry: bytes, path: str, shard_name: str) -> tuple[bytes, int]:
    name, colon, number = entry[1:].rpartition(b":")
    if not colon or not name or not number.isdigit() or len(number) > 18:  # noqa: PLR2004 of int64
        as_in = f", as in #{shard_name}:0" if shard_name else ""
        raise ConfigError(
            f"exclude: {path} has the line {os.fsdecode(entry)!r}, which begins with # and is no "
            f"#SHARD-FILE-NAME:NUMBER{as_in}; put a backslash before a key that begins with #"
        )
    return name, int(number)


def open_list(path: str) -> int:
    """A list, open for reading, which the caller closes.

    Raises:
        ConfigError: It cannot be opened.
    """
    try:
        return open_regular(Path(path).expanduser())
    except (FileAccessError, ShardNotFoundError) as error:
        raise ConfigError(
            f"exclude: the list {path!r} cannot be read: {error}; name a text file with one key a "
            "line"
        ) from error
