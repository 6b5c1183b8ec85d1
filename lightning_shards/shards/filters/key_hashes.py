"""Hashes of keys: a fixed part of all samples, the same in every run and in any program.

The hash of a key is the SHA-256 of its bytes as they are in the tar (UTF-8, as a rule). Its part is
the first 8 bytes, read as a big-endian number, modulo the number of parts::

    int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % of
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError
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
