"""The samples to be written, where the bytes of their members are, and their shards.

A member is a stretch of a file: of a tar, or of a file with nothing else in it; a label or a
caption is in no file. So one plan and one writer serve every kind of input. Files must stay as they
were listed.

All randomness comes from each sample's key and the seed alone. So neither the order in which inputs
are named nor samples that are added later change the split of a sample, or the order of the other
samples.
"""

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.dataprep.tar_writer import check_sample, tar_size
from lightning_shards.errors import ConfigError, DamagedShardError, FileAccessError, SampleError
from lightning_shards.shards.files import irregular, open_regular, stamp_of
from lightning_shards.shards.storage.local import read_at


class InputExtent(NamedTuple):
    """The bytes of one member: a stretch of a file, or `inline` if it is in no file (`path` "").

    `stamp` is the size of the file and its time of change, in ns, when it was listed.
    """

    field: str
    path: str
    stamp: tuple[int, int]
    offset: int
    size: int
    inline: bytes = b""


class InputSample(NamedTuple):
    """A sample: its key, its members in file order, and its split; "" if it has none."""

    key: str
    members: tuple[InputExtent, ...]
    split: str = ""


def read_extent(extent: InputExtent) -> bytes:
    """The bytes of a member.

    Raises:
        ShardNotFoundError: Its file does not exist any more.
        FileAccessError: It cannot be opened or read.
        DamagedShardError: The file was changed after it was listed.
    """
    if not extent.path:
        return extent.inline
    with os.fdopen(open_regular(extent.path), "rb", buffering=0) as file:
        try:
            data = read_at(file.fileno(), extent.offset, extent.size)
        except OSError as error:
            raise FileAccessError(f"{extent.path} cannot be read: {error}") from error
        # It is compared after reading, because a write changes the time of a file before its bytes.
        if stamp_of(file.fileno()) != extent.stamp:
            raise DamagedShardError(
                f"{extent.path} was changed since it was listed; run the command again into a new "
                "folder"
            )
    return data


def whole_file(field: str, path: str) -> InputExtent:
    """A member that is a whole file, with its current size and time of change.

    Raises:
        FileAccessError: It is not a regular file.
        OSError: There is no such file, or this user has no access to it.
    """
    status = Path(path).stat()
    if not stat.S_ISREG(status.st_mode):
        raise irregular(path, status.st_mode)
    stamp = status.st_size, status.st_mtime_ns
    return InputExtent(field, os.path.abspath(path), stamp, 0, status.st_size)  # noqa: PTH100 - "..", links stay


def inline(field: str, data: bytes) -> InputExtent:
    """A member with this content."""
    return InputExtent(field, "", (0, 0), 0, len(data), data)


PackOrder = Literal["source", "shuffled"]
"""As listed, or in a uniformly random order by the seed."""

DEFAULT_MAX_BYTES: Final = 1_000_000_000
"""Bytes of a shard: large enough for few files that disks and stores read at full speed."""

_ORDER_WORD, _SPLIT_WORD = range(2)
_WORDS = 3
_WORD_BYTES = 8
_WORD_RANGE = 2.0**64


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How samples are laid out in shards.

    Attributes:
        order: The order of the samples.
        seed: 0 <= seed < 2**64.
        max_samples: Most samples of a shard; it replaces `max_bytes`.
        max_bytes: Most bytes of a shard, before any edit; a larger sample gets a shard of its own.
        val_fraction: Share of the samples that goes to the split `val`; the others go to `train`.
    """

    order: PackOrder = "source"
    seed: int = 0
    max_samples: int | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    val_fraction: float = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        for name in ("max_samples", "max_bytes"):
            if (most := getattr(self, name)) is not None and most < 1:
                raise ConfigError(f"{name} must be at least 1, got {most}")
        if not 0 <= self.val_fraction < 1:
            raise ConfigError(f"val_fraction must be from 0 to below 1, got {self.val_fraction}")


def assign(samples: Sequence[InputSample], packing: Packing) -> dict[str, list[NDArray[np.int64]]]:
    """The numbers of the samples of each shard, in order, by split ("" if there are no splits).

    Args:
        samples: If they name splits, these are used, and `val_fraction` must be 0.
        packing: How samples are laid out.

    Raises:
        ConfigError: A split has no sample.
    """
    keys = [sample.key for sample in samples]
    words = _words(keys, packing.seed)
    numbers = np.arange(len(keys))
    if packing.order == "shuffled":  # by one word; by another where two are equal
        numbers = np.lexsort((words[:, _SPLIT_WORD], words[:, _ORDER_WORD]))
    split_of = np.array([sample.split for sample in samples])
    names = sorted({sample.split for sample in samples}) or [""]
    if packing.val_fraction:
        if names != [""]:
            raise ConfigError("val_fraction and a column of splits both split; choose one")
        limit = np.uint64(packing.val_fraction * _WORD_RANGE)
        split_of = np.where(words[:, _SPLIT_WORD] < limit, "val", "train")
        names = ["train", "val"]
    sizes = np.array(
        [sum(tar_size(member.size) for member in sample.members) for sample in samples]
    )
    return {name: _cut(numbers[split_of[numbers] == name], sizes, packing, name) for name in names}


def require_sound(samples: Sequence[InputSample]) -> None:
    """Check that each sample can be read back from a tar, and that no two have the same key.

    Raises:
        SampleError: One cannot, or two have.
    """
    keys: set[str] = set()
    for sample in samples:
        check_sample(sample.key, [member.field for member in sample.members])
        if sample.key in keys:
            raise SampleError(
                f"samples share their keys, such as {sample.key!r}; rename the files, or of a "
                "table name a column of unique keys by --key"
            )
        keys.add(sample.key)


def _words(keys: Sequence[str], seed: int) -> NDArray[np.uint64]:
    """Three random words for each key, from the key and the seed alone, shape (num_keys, 3)."""
    salt = seed.to_bytes(_WORD_BYTES, "little")
    length = _WORDS * _WORD_BYTES
    drawn = (hashlib.blake2b(key.encode(), digest_size=length, key=salt).digest() for key in keys)
    return np.frombuffer(b"".join(drawn), "<u8").reshape(-1, _WORDS)


def _cut(
    numbers: NDArray[np.int64], sizes: NDArray[np.int64], packing: Packing, split: str
) -> list[NDArray[np.int64]]:
    """The samples of each shard of one split."""
    if not len(numbers):
        name = f"split {split!r}" if split else "the data set"
        raise ConfigError(f"{name} has no sample; look at the input and at what was left out of it")
    if packing.max_samples is not None:
        return np.split(numbers, range(packing.max_samples, len(numbers), packing.max_samples))
    starts: list[int] = []
    filled = 0
    for number, size in enumerate(sizes[numbers].tolist()):
        filled += size
        if filled > packing.max_bytes and number:
            starts.append(number)
            filled = size
    return np.split(numbers, starts)
