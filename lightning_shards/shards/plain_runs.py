"""Runs of plain tar headers, read together by numpy: several times as fast as one by one.

A header is plain if nothing in it needs a decision: a regular file of ustar, its numbers in the
form that writers use, its checksum right, its name short ASCII with a key and a suffix. A run ends
before the first sample that has another one, and `tar.walk_members` goes on there: it knows all the
rest, errors included. Only tars of small members are read so, as this looks at every block of data.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.shards.tar import BLOCK, Buffer

_WINDOWS: Final = (128, 4096)
"""Blocks looked at together: at first few, to see whether members are small."""

_MAX_SPARSE: Final = 32
"""Blocks for each header, on average, up to which the data is looked at, too."""

_TWO: Final = 2
"""Samples that a window must hold: the last one may go on behind it."""

_NAME, _SIZE, _SUM = slice(0, 100), slice(124, 136), slice(148, 156)
_FLAG, _MAGIC, _PREFIX = 156, slice(257, 262), 345
_USTAR = np.frombuffer(b"ustar", np.uint8)
_COLUMNS = np.arange(100, dtype=np.int8)
_FIRST, _LAST, _SLASH, _DOT, _UNDERSCORE, _ZERO = b" ~/._0"

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]


class PlainRun(NamedTuple):
    """Whole samples that follow each other in a tar.

    Attributes:
        stop: position of the first header behind them.
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
    key_lengths: Ints
    num_members: Ints
    offsets: Ints
    sizes: Ints
    suffixes: list[str]
    suffix_ids: Ints


class _Names(NamedTuple):
    """Names, zeros behind them; `dots` is where their keys end."""

    texts: Bytes
    dots: Ints
    are_plain: Flags


def plain_runs(data: Buffer) -> Iterator[PlainRun]:
    """The runs from the start of a tar on, until one header is not plain."""
    position, windows = 0, iter(_WINDOWS)
    window = next(windows)
    while (run := _run_at(data, position, window)) is not None:
        yield run
        position, window = run.stop, next(windows, window)


def _run_at(data: Buffer, position: int, window: int) -> PlainRun | None:
    """The samples that are whole in this window; None if there is none."""
    count = min(window, (len(data) - position) // BLOCK)
    blocks = np.frombuffer(data, np.uint8, count * BLOCK, position).reshape(count, BLOCK)
    places = np.flatnonzero(blocks[:, _MAGIC.start] == _USTAR[0])
    if len(places) < _TWO or len(places) * _MAX_SPARSE < count:
        return None
    headers = blocks[places]
    sizes, are_sizes = _octal(headers[:, _SIZE], 11)
    names = _split(headers[:, _NAME])
    offsets = position + (places + 1) * BLOCK
    are_plain = (
        names.are_plain
        & are_sizes
        & (headers[:, _FLAG] == _ZERO)
        & (headers[:, _PREFIX] == 0)
        & (headers[:, _MAGIC] == _USTAR).all(axis=1)
        & _are_summed(headers)
    )
    # a member that the next header follows is whole; the last one is left to the next window
    following = places + 1 + (sizes + BLOCK - 1) // BLOCK
    are_plain[0] &= places[0] == 0
    are_plain[1:] &= following[:-1] == places[1:]
    length = len(are_plain) if are_plain.all() else int(are_plain.argmin())
    return _samples(names, offsets[:length], sizes[:length])


def _octal(fields: Bytes, digits: int) -> tuple[Ints, Flags]:
    """Numbers of so many octal digits and an end; and which of them are written so."""
    values = fields[:, :digits] - np.uint8(_ZERO)  # what is below wraps around
    ends = fields[:, digits]
    powers = 8 ** np.arange(digits - 1, -1, -1)
    return values @ powers, (values < 8).all(axis=1) & ((ends == 0) | (ends == _FIRST))  # noqa: PLR2004


def _are_summed(headers: Bytes) -> Flags:
    """Whether the checksums are right; the sum counts their own bytes as spaces."""
    halves = headers.reshape(-1, 2, BLOCK // 2).sum(axis=2, dtype=np.uint16)  # 65,280 at most
    sums = halves.sum(axis=1, dtype=np.int64)
    fields = headers[:, _SUM]
    expected, are_numbers = _octal(fields, 6)
    return are_numbers & (sums - fields.sum(axis=1, dtype=np.int64) + 8 * _FIRST == expected)


def _split(texts: Bytes) -> _Names:
    """Names at the first dot behind the last slash; others are not plain (see `split_name`)."""
    texts = texts[:, : int(np.flatnonzero(texts.any(axis=0)).max(initial=0)) + 1]
    columns = _COLUMNS[: texts.shape[1]]
    ends = texts == 0
    lengths = np.where(ends.any(axis=1), ends.argmax(axis=1), len(columns))
    inside = lengths.astype(np.int8)[:, None] > columns
    are_ascii = ((texts >= _FIRST) & (texts <= _LAST) | ~inside).all(axis=1)
    slashes = np.where((texts == _SLASH) & inside, columns, np.int8(-1)).max(axis=1)
    are_dots = (texts == _DOT) & inside & (slashes[:, None] < columns)
    dots = are_dots.argmax(axis=1)
    are_plain = are_ascii & (dots > slashes + 1)
    if (texts == _UNDERSCORE).any():
        are_plain &= ~_are_underscores(texts, np.zeros_like(dots))
        are_plain &= ~_are_underscores(texts, dots + 1)
    return _Names(np.where(inside, texts, np.uint8(0)), dots, are_plain)


def _are_underscores(texts: Bytes, starts: Ints) -> Flags:
    """Whether two underscores begin there: names that mean something to readers."""
    rows, last = np.arange(len(texts)), texts.shape[1] - 1
    first, second = (np.minimum(starts + each, last) for each in (0, 1))
    return (texts[rows, first] == _UNDERSCORE) & (texts[rows, second] == _UNDERSCORE)


def _samples(names: _Names, offsets: Ints, sizes: Ints) -> PlainRun | None:
    """All samples but the last, which may go on; None if there is no other or one has a fault."""
    texts, dots = names.texts[: len(offsets)], names.dots[: len(offsets)]
    in_key = dots.astype(np.int8)[:, None] > _COLUMNS[: texts.shape[1]]
    keys = _strings(np.where(in_key, texts, np.uint8(0)))
    begins: Ints = np.flatnonzero(np.concatenate([[len(keys) > 0], keys[1:] != keys[:-1]]))
    if len(begins) < _TWO:
        return None
    stop, firsts, num_members = int(begins[-1]), begins[:-1], np.diff(begins)
    suffixes, suffix_ids = _suffixes(texts[:stop], dots[:stop])
    samples = np.repeat(np.arange(len(num_members)), num_members)
    fields = np.sort(samples * len(suffixes) + suffix_ids)
    if (fields[1:] == fields[:-1]).any():  # a suffix comes twice in a sample
        return None
    return PlainRun(
        int(offsets[stop]) - BLOCK,
        texts[firsts][in_key[firsts]].tobytes(),
        dots[firsts],
        num_members,
        offsets[:stop],
        sizes[:stop],
        suffixes,
        suffix_ids,
    )


def _suffixes(texts: Bytes, dots: Ints) -> tuple[list[str], Ints]:
    """The different suffixes in lower case, as they come; and the number of each name's."""
    names: list[bytes] = _strings(texts).tolist()
    own = [name[dot + 1 :] for name, dot in zip(names, dots.tolist(), strict=True)]
    lower = {suffix: str(suffix, "ascii").lower() for suffix in dict.fromkeys(own)}
    numbers = {suffix: number for number, suffix in enumerate(dict.fromkeys(lower.values()))}
    known = {suffix: numbers[name] for suffix, name in lower.items()}
    return list(numbers), np.array(list(map(known.__getitem__, own)), np.int64)


def _strings(texts: Bytes) -> NDArray[np.bytes_]:
    """Rows of bytes as strings, without the zeros at their ends."""
    return np.ascontiguousarray(texts).view(f"S{texts.shape[1]}").ravel()
