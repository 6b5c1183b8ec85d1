"""Runs of plain tar headers, read together by numpy: several times as fast as one by one.

A header is plain if nothing in it needs a decision: a regular file of ustar, its numbers in the
form that writers use, its checksum right, its name short ASCII with a key and a suffix; before it
may stand an extended header with a time, as webdataset writes them. A run ends before the first
sample that has another one, and `walk.walk_members` goes on there: it knows all the rest, errors
included. Only tars of small members are read so, as this looks at every block of data.
"""

from array import array
from collections.abc import Iterator
from os import PathLike, fspath
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.shards.tar.tar_bytes import open_tar
from lightning_shards.shards.tar.walk import BLOCK, Buffer, group_members, walk_members

_WINDOWS: Final = (128, 2048)
"""Blocks looked at together: at first few, to see whether members are small; then 1 MiB, as what is
read at once fills fresh memory from 2 MiB on, at twice the price."""

_MAX_SPARSE: Final = 32
"""Blocks for each header, on average, up to which the data is looked at, too."""

_TWO: Final = 2
"""Samples that a window must hold: the last one may go on behind it."""

_MAX_SUFFIXES: Final = 40
"""Different ones in a window: each is looked for by itself, and is one bit of an int64."""

_NAME, _SIZE, _SUM = slice(0, 100), slice(124, 136), slice(148, 156)
_FLAG, _MAGIC, _PREFIX = 156, slice(257, 261), 345
_USTA = np.frombuffer(b"usta", np.uint32)  # of the magic "ustar"; the walk asks for none
_COLUMNS = np.arange(100, dtype=np.int8)
_FIRST, _LAST, _ZERO, _EXTENDED = b" ~0x"
_TIMES = np.array([b"%d mtime=" % size for size in range(64)])
"""How an extended header of so many bytes begins that has a time alone."""

_Bytes = NDArray[np.uint8]
_Strings = NDArray[np.bytes_]
_Flags = NDArray[np.bool_]
_Ints = NDArray[np.int64]


class SampleRun(NamedTuple):
    """Whole samples that follow each other in a tar.

    Attributes:
        stop: position of what is behind them.
        keys: all keys one after the other.
        key_lengths: of each, int64.
        num_members: of each sample, int64.
        offsets: where the data of each member begins, int64.
        sizes: of each, int64.
        suffixes: the different ones in lower case, in the order in which they come.
        suffix_ids: position of each member's suffix in `suffixes`, int64.
    """

    stop: int
    keys: bytes
    key_lengths: _Ints
    num_members: _Ints
    offsets: _Ints
    sizes: _Ints
    suffixes: list[str]
    suffix_ids: _Ints


class _Names(NamedTuple):
    """Names as rows of bytes and as strings; `dots` is where their keys end."""

    texts: _Bytes
    strings: _Strings
    lengths: _Ints
    dots: _Ints
    are_plain: _Flags


def count_samples(path: str | PathLike[str]) -> int:
    """How many samples webdataset yields from this local tar; only its headers are read.

    Raises:
        ShardNotFoundError: There is no such file.
        DamagedShardError: The file is not one whole tar archive.
    """
    url, position, count = fspath(path), 0, 0
    with open_tar(url) as data:
        for run in plain_runs(data):
            position, count = run.stop, count + len(run.num_members)
        return count + sum(1 for _ in group_members(walk_members(data, url, position), url))


def holds_samples(path: str | PathLike[str]) -> bool:
    """Whether webdataset yields any sample from this local tar; headers are read up to the first.

    Raises:
        ShardNotFoundError: There is no such file.
        DamagedShardError: What was read is no tar archive.
    """
    url = fspath(path)
    with open_tar(url) as data:
        return any(True for _ in group_members(walk_members(data, url), url))


def scan_samples(data: Buffer, url: str) -> SampleRun:
    """All samples of a tar; `url` only serves the messages.

    Raises:
        DamagedShardError: The bytes are not one whole tar archive.
    """
    runs = list(plain_runs(data))
    runs.append(_walk(data, url, runs[-1].stop if runs else 0))
    names = dict.fromkeys(name for run in runs for name in run.suffixes)
    numbers = {name: number for number, name in enumerate(names)}
    ids = [np.array([numbers[name] for name in run.suffixes], np.int64) for run in runs]
    return SampleRun(
        runs[-1].stop,
        b"".join(run.keys for run in runs),
        np.concatenate([run.key_lengths for run in runs]),
        np.concatenate([run.num_members for run in runs]),
        np.concatenate([run.offsets for run in runs]),
        np.concatenate([run.sizes for run in runs]),
        list(numbers),
        np.concatenate([own[run.suffix_ids] for own, run in zip(ids, runs, strict=True)]),
    )


def _walk(data: Buffer, url: str, position: int) -> SampleRun:
    """The samples from a header on, read one by one."""
    keys = bytearray()
    key_lengths, num_members = array("q"), array("q")
    offsets, sizes, suffix_ids = array("q"), array("q"), array("q")
    numbers: dict[str, int] = {}
    for key, fields in group_members(walk_members(data, url, position), url):
        encoded = key.encode("utf-8", "surrogateescape")
        keys += encoded
        key_lengths.append(len(encoded))
        num_members.append(len(fields))
        for suffix, member in fields.items():
            offsets.append(member.offset)
            sizes.append(member.size)
            suffix_ids.append(numbers.setdefault(suffix, len(numbers)))
    lengths, counts = np.array(key_lengths), np.array(num_members)
    places = np.array(offsets), np.array(sizes)
    return SampleRun(
        len(data), bytes(keys), lengths, counts, *places, list(numbers), np.array(suffix_ids)
    )


def plain_runs(data: Buffer) -> Iterator[SampleRun]:
    """The runs from the start of a tar on, until one header is not plain."""
    position, windows = 0, iter(_WINDOWS)
    window = next(windows)
    while (run := _run_at(data, position, window)) is not None:
        yield run
        position, window = run.stop, next(windows, window)


def _run_at(data: Buffer, position: int, window: int) -> SampleRun | None:
    """The samples that are whole in this window; None if there is none."""
    count = min(window, (len(data) - position) // BLOCK)
    part = data[position : position + count * BLOCK]
    blocks = np.frombuffer(part, np.uint8).reshape(count, BLOCK)
    places = np.flatnonzero(blocks[:, _MAGIC].view(np.uint32) == _USTA)
    if len(places) < _TWO or len(places) * _MAX_SPARSE < count:
        return None
    headers = blocks[places]
    sizes, are_plain = _octal(headers[:, _SIZE], 11)
    are_plain &= (headers[:, _PREFIX] == 0) & _are_summed(headers)
    # a member that the next header follows is whole; the last one is left to the next window
    following = places + 1 + (sizes + BLOCK - 1) // BLOCK
    are_plain[0] &= places[0] == 0
    are_plain[1:] &= following[:-1] == places[1:]
    flags = headers[:, _FLAG]
    members, extended = np.flatnonzero(flags == _ZERO), np.flatnonzero(flags == _EXTENDED)
    names = _split(headers[:, _NAME][members])
    are_known = np.zeros(len(headers), np.bool_)
    are_known[members] = names.are_plain
    are_known[extended] = _are_times(blocks, places[extended] + 1, sizes[extended])
    are_known[1:] &= (flags[1:] == _ZERO) | (flags[:-1] == _ZERO)  # not two extended ones
    are_plain &= are_known
    length = len(are_plain) if are_plain.all() else int(are_plain.argmin())
    members = members[: np.searchsorted(members, length)]
    return _samples(names, position + places * BLOCK, sizes, members)


def _octal(fields: _Bytes, digits: int) -> tuple[_Ints, _Flags]:
    """Numbers of so many octal digits and an end; and which of them are written so."""
    columns = np.ascontiguousarray(fields[:, :digits].T)  # twice as fast as by rows
    columns -= np.uint8(_ZERO)  # what is below wraps around
    ends = fields[:, digits]
    powers = 8 ** np.arange(digits - 1, -1, -1)
    return powers @ columns, (columns.max(axis=0) < 8) & ((ends == 0) | (ends == _FIRST))  # noqa: PLR2004


def _are_summed(headers: _Bytes) -> _Flags:
    """Whether the checksums are right, modulo 65,536, which no header of ASCII reaches.

    Each checksum is overwritten: the sum counts its bytes as spaces.
    """
    expected, are_numbers = _octal(headers[:, _SUM], 6)
    headers[:, _SUM] = _FIRST
    return are_numbers & (headers.sum(axis=1, dtype=np.uint16) == expected)


def _are_times(blocks: _Bytes, places: _Ints, sizes: _Ints) -> _Flags:
    """Whether these extended headers hold a time alone (compare `_pax_overrides`)."""
    texts = blocks[:, : len(_TIMES)][np.minimum(places, len(blocks) - 1)]
    begins = _TIMES[np.minimum(sizes, len(_TIMES) - 1)]
    records = _strings(texts)
    are_single = np.strings.find(records, b"\n") == sizes - 1
    return are_single & np.strings.startswith(records, begins)


def _split(texts: _Bytes) -> _Names:
    """Names at the first dot behind the last slash; others are not plain (see `split_name`)."""
    longest = int(np.flatnonzero(texts.max(axis=0, initial=0)).max(initial=0)) + 1
    texts = np.ascontiguousarray(texts[:, :longest])
    names = _strings(texts)
    slashes = np.strings.rfind(names, b"/")
    dots = np.strings.find(names, b".", slashes + 1)
    are_ascii = texts - np.uint8(_FIRST) <= _LAST - _FIRST  # what is below wraps around
    lengths: _Ints = np.strings.str_len(names)
    are_plain = (are_ascii.sum(axis=1, dtype=np.uint8) == lengths) & (dots > slashes + 1)
    if b"__" in texts.tobytes():  # to begin with, they mean something to readers
        are_plain &= ~np.strings.startswith(names, b"__")
        are_plain &= ~np.strings.startswith(names, b"__", dots + 1)
    return _Names(texts, names, lengths, dots, are_plain)


def _samples(names: _Names, headers: _Ints, sizes: _Ints, members: _Ints) -> SampleRun | None:
    """All samples but the last, which may go on; None if there is no other or one has a fault."""
    texts, dots = names.texts[: len(members)], names.dots[: len(members)]
    in_key = dots.astype(np.int8)[:, None] > _COLUMNS[: texts.shape[1]]
    keys = _strings(texts * in_key)
    begins: _Ints = np.flatnonzero(np.concatenate([[len(keys) > 0], keys[1:] != keys[:-1]]))
    if len(begins) < _TWO:
        return None
    stop, firsts = int(begins[-1]), begins[:-1]
    suffixes, suffix_ids = _suffixes(names.strings[:stop], names.lengths[:stop], dots[:stop])
    bits = 1 << suffix_ids
    is_twice = np.add.reduceat(bits, firsts) != np.bitwise_or.reduceat(bits, firsts)
    if not suffixes or is_twice.any():
        return None
    members = members[:stop]
    return SampleRun(
        int(headers[members[-1] + 1]),
        b"".join(keys[firsts].tolist()),
        dots[firsts],
        np.diff(begins),
        headers[members] + BLOCK,
        sizes[members],
        suffixes,
        suffix_ids,
    )


def _suffixes(names: _Strings, lengths: _Ints, dots: _Ints) -> tuple[list[str], _Ints]:
    """The different suffixes in lower case, as they come; and the number of each name's.

    No suffixes at all if there are too many.
    """
    found: list[str] = []
    numbers = np.full(len(names), -1)
    for _ in range(_MAX_SUFFIXES):
        unknown = int(numbers.argmin())
        suffix = bytes(names[unknown])[dots[unknown] :]
        name = str(suffix[1:], "ascii").lower()
        if name not in found:
            found.append(name)
        are_same = (lengths == dots + len(suffix)) & np.strings.endswith(names, suffix)
        numbers[are_same] = found.index(name)
        if numbers.min() >= 0:
            return found, numbers
    return [], numbers


def _strings(texts: _Bytes) -> _Strings:
    """Rows of bytes as strings, without the zeros at their ends."""
    return np.ascontiguousarray(texts).view(f"S{texts.shape[1]}").ravel()
