"""Vectorised reading of plain tar headers by numpy, several times as fast as one by one.

A header is plain if nothing in it needs a decision: it is of a regular file in ustar format, its
numbers have the form that writers use, its checksum is right, and its name is short ASCII with a
key and a suffix. An extended header with a time may precede it, as webdataset writes them. A run of
plain headers ends before the first sample with any other header, where `walk.walk_members` goes on:
it knows all other headers, and all errors. Only tars of small members are read in this way, because
it looks at every block of data.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.shards.tar.walk import (
    BLOCK,
    Buffer,
    Member,
    group_members,
    up_to_block,
    walk_members,
)

_WINDOWS: Final = (128, 2048)
"""Tar blocks read together: few at first, to see whether members are small, and then 1 MiB. Reads
of 2 MiB and more take twice as long, because each fills fresh memory."""

_MAX_SPARSE: Final = 32
"""Most blocks per header, on average, for which looking at the data as well pays off."""

_TWO: Final = 2
"""Samples that a window must hold at least: the last one may go on in the next window."""

_MAX_SUFFIXES: Final = 40
"""Most different suffixes in a window: each takes one search, and is one bit of an int64."""

_NAME, _SIZE, _SUM = slice(0, 100), slice(124, 136), slice(148, 156)
_FLAG, _MAGIC, _PREFIX = 156, slice(257, 261), 345
_USTA = np.frombuffer(b"usta", np.uint32)  # from the magic "ustar"; the walk needs no magic
_COLUMNS = np.arange(100, dtype=np.int8)
_FIRST, _LAST, _ZERO, _EXTENDED = b" ~0x"
_TIMES = np.array([b"%d mtime=" % size for size in range(64)])
"""The beginning of an extended header with nothing but a time, by its size in bytes."""

_Bytes = NDArray[np.uint8]
_Strings = NDArray[np.bytes_]
_Flags = NDArray[np.bool_]
_Ints = NDArray[np.int64]


class SampleRun(NamedTuple):
    """Whole samples that follow each other in a tar.

    Attributes:
        stop: Offset of the first byte behind these samples.
        keys: All keys, concatenated.
        suffixes: The different suffixes in lower case, in order of appearance.
        key_lengths: Length of each key, int64.
        num_members: Number of members of each sample, int64.
        offsets: Offset of the data of each member, int64.
        sizes: bytes of data of each member, int64.
        suffix_ids: Position of each member's suffix in `suffixes`, int64.
    """

    stop: int
    keys: bytes
    suffixes: list[str]
    key_lengths: _Ints
    num_members: _Ints
    offsets: _Ints
    sizes: _Ints
    suffix_ids: _Ints


class _Names(NamedTuple):
    """Names as rows of bytes and as strings; `dots` are the positions where their keys end."""

    texts: _Bytes
    strings: _Strings
    lengths: _Ints
    dots: _Ints
    are_plain: _Flags


def scan_samples(data: Buffer, url: str) -> SampleRun:
    """All samples of a tar; `url` only serves the messages.

    Raises:
        DamagedShardError: The bytes are not one whole tar archive.
    """
    runs = list(plain_runs(data))
    start = runs[-1].stop if runs else 0
    samples = group_members(walk_members(data, url, start), url)
    return joined_runs([*runs, run_of(samples, len(data))])


def joined_runs(runs: Sequence[SampleRun]) -> SampleRun:
    """Runs of one tar that follow each other, at least one, as one run."""
    names = dict.fromkeys(name for run in runs for name in run.suffixes)
    numbers = {name: number for number, name in enumerate(names)}
    ids = [np.array([numbers[name] for name in run.suffixes], np.int64) for run in runs]
    rows = [(*run[3:-1], of_run[run.suffix_ids]) for of_run, run in zip(ids, runs, strict=True)]
    columns = map(np.concatenate, zip(*rows, strict=True))
    return SampleRun(runs[-1].stop, b"".join(run.keys for run in runs), list(numbers), *columns)


def run_of(samples: Iterable[tuple[str, dict[str, Member]]], stop: int) -> SampleRun:
    """The run of samples that were read one by one; `stop` is its end."""
    keys, of_samples, of_members = bytearray(), array("q"), array("q")
    numbers: dict[str, int] = {}
    for key, fields in samples:
        encoded = key.encode("utf-8", "surrogateescape")
        keys += encoded
        of_samples.extend((len(encoded), len(fields)))
        for suffix, member in fields.items():
            number = numbers.setdefault(suffix, len(numbers))
            of_members.extend((member.offset, member.size, number))
    # a row for each sample, and one for each member
    columns = (*np.array(of_samples).reshape(-1, 2).T, *np.array(of_members).reshape(-1, 3).T)
    return SampleRun(stop, bytes(keys), list(numbers), *columns)


def plain_runs(data: Buffer) -> Iterator[SampleRun]:
    """The runs from the start of a tar on, until one header is not plain."""
    position, windows = 0, iter(_WINDOWS)
    window = next(windows)
    while (run := _run_at(data, position, window)) is not None:
        yield run
        position, window = run.stop, next(windows, window)


def _run_at(data: Buffer, position: int, window: int) -> SampleRun | None:
    """The samples that are whole in this window; None if there is none."""
    # blocks: the window in tar blocks, shape (count, BLOCK). Headers are found by their magic.
    # numbers: the number of each header's block, shape (num_headers,).
    # headers, sizes, flags, are_plain: one entry per header. The run ends at the first that is
    # not plain. members, extended: numbers of headers of this type.
    count = min(window, (len(data) - position) // BLOCK)
    part = data[position : position + count * BLOCK]
    blocks = np.frombuffer(part, np.uint8).reshape(count, BLOCK)
    numbers = np.flatnonzero(blocks[:, _MAGIC].view(np.uint32) == _USTA)
    if len(numbers) < _TWO or len(numbers) * _MAX_SPARSE < count:
        return None
    headers = blocks[numbers]
    sizes, are_plain = _octal(headers[:, _SIZE], 11)
    are_plain &= (headers[:, _PREFIX] == 0) & _are_summed(headers)
    # A member is whole if the next header follows it; the last one is left to the next window.
    following = numbers + 1 + up_to_block(sizes) // BLOCK
    are_plain[0] &= numbers[0] == 0
    are_plain[1:] &= following[:-1] == numbers[1:]
    flags = headers[:, _FLAG]
    members, extended = np.flatnonzero(flags == _ZERO), np.flatnonzero(flags == _EXTENDED)
    names = _split(headers[:, _NAME][members])
    are_known = np.zeros(len(headers), np.bool_)
    are_known[members] = names.are_plain
    are_known[extended] = _are_times(blocks, numbers[extended] + 1, sizes[extended])
    are_known[1:] &= (flags[1:] == _ZERO) | (flags[:-1] == _ZERO)  # not two extended ones
    are_plain &= are_known
    length = len(are_plain) if are_plain.all() else int(are_plain.argmin())
    members = members[: np.searchsorted(members, length)]
    return _samples(names, position + numbers * BLOCK, sizes, members)


def _octal(fields: _Bytes, digits: int) -> tuple[_Ints, _Flags]:
    """The numbers in fields of so many octal digits and an end; and which fields have this form."""
    columns = np.ascontiguousarray(fields[:, :digits].T)  # twice as fast as by rows
    columns -= np.uint8(_ZERO)  # bytes below "0" wrap around and become large
    ends = fields[:, digits]
    powers = 8 ** np.arange(digits - 1, -1, -1)
    return powers @ columns, (columns.max(axis=0) < 8) & ((ends == 0) | (ends == _FIRST))  # noqa: PLR2004


def _are_summed(headers: _Bytes) -> _Flags:
    """Whether the checksums are right. Sums are modulo 65,536, which ASCII headers never reach.

    The checksum fields are overwritten with spaces, as the sum counts them.
    """
    expected, are_numbers = _octal(headers[:, _SUM], 6)
    headers[:, _SUM] = _FIRST
    return are_numbers & (headers.sum(axis=1, dtype=np.uint16) == expected)


def _are_times(blocks: _Bytes, numbers: _Ints, sizes: _Ints) -> _Flags:
    """Whether these extended headers hold only a time (compare `_pax_overrides`)."""
    texts = blocks[:, : len(_TIMES)][np.minimum(numbers, len(blocks) - 1)]
    begins = _TIMES[np.minimum(sizes, len(_TIMES) - 1)]
    records = _strings(texts)
    are_single = np.strings.find(records, b"\n") == sizes - 1
    return are_single & np.strings.startswith(records, begins)


def _split(texts: _Bytes) -> _Names:
    """Names split at the first dot after the last slash; others are not plain (`split_name`)."""
    # texts: one name per row, filled up with zeros, shape (num_names, longest).
    # names, slashes, dots, lengths, are_plain: one entry per name, shape (num_names,).
    longest = int(np.flatnonzero(texts.max(axis=0, initial=0)).max(initial=0)) + 1
    texts = np.ascontiguousarray(texts[:, :longest])
    names = _strings(texts)
    slashes = np.strings.rfind(names, b"/")
    dots = np.strings.find(names, b".", slashes + 1)
    are_ascii = texts - np.uint8(_FIRST) <= _LAST - _FIRST  # bytes below wrap around
    lengths: _Ints = np.strings.str_len(names)
    are_plain = (are_ascii.sum(axis=1, dtype=np.uint8) == lengths) & (dots > slashes + 1)
    if b"__" in texts.tobytes():  # keys and suffixes that begin so have a meaning to readers
        are_plain &= ~np.strings.startswith(names, b"__")
        are_plain &= ~np.strings.startswith(names, b"__", dots + 1)
    return _Names(texts, names, lengths, dots, are_plain)


def _samples(names: _Names, headers: _Ints, sizes: _Ints, members: _Ints) -> SampleRun | None:
    """All samples but the last, which may go on; None if there is no other or one has a fault."""
    # texts, dots, keys: one entry per member, shape (len(members),).
    # begins: the number of each sample's first member; a sample is a run of equal keys.
    texts, dots = names.texts[: len(members)], names.dots[: len(members)]
    in_key = dots.astype(np.int8)[:, None] > _COLUMNS[: texts.shape[1]]
    keys = _strings(texts * in_key)
    begins: _Ints = np.flatnonzero(np.concatenate([[len(keys) > 0], keys[1:] != keys[:-1]]))
    if len(begins) < _TWO:
        return None
    stop, firsts = int(begins[-1]), begins[:-1]
    suffixes, suffix_ids = _suffixes(names.strings[:stop], names.lengths[:stop], dots[:stop])
    # A suffix that comes twice in a sample makes the sum of its bits differ from their union.
    bits = 1 << suffix_ids
    is_twice = np.add.reduceat(bits, firsts) != np.bitwise_or.reduceat(bits, firsts)
    if not suffixes or is_twice.any():
        return None
    members = members[:stop]
    return SampleRun(
        int(headers[members[-1] + 1]),
        b"".join(keys[firsts].tolist()),
        suffixes,
        dots[firsts],
        np.diff(begins),
        headers[members] + BLOCK,
        sizes[members],
        suffix_ids,
    )


def _suffixes(names: _Strings, lengths: _Ints, dots: _Ints) -> tuple[list[str], _Ints]:
    """The different suffixes in lower case, in order of appearance; and each name's number.

    There are no suffixes if there would be too many.
    """
    suffixes: list[str] = []
    numbers = np.full(len(names), -1)
    for _ in range(_MAX_SUFFIXES):
        unknown = int(numbers.argmin())
        suffix = bytes(names[unknown])[dots[unknown] :]
        name = str(suffix[1:], "ascii").lower()
        if name not in suffixes:
            suffixes.append(name)
        are_same = (lengths == dots + len(suffix)) & np.strings.endswith(names, suffix)
        numbers[are_same] = suffixes.index(name)
        if numbers.min() >= 0:
            return suffixes, numbers
    return [], numbers


def _strings(texts: _Bytes) -> _Strings:
    """Rows of bytes as strings, without zeros at their ends."""
    return np.ascontiguousarray(texts).view(f"S{texts.shape[1]}").ravel()
