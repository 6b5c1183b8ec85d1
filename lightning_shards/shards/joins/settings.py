"""The settings of the joins of a split, checked before anything is read, and what rows are.

Keys are compared by 128 bits of a cryptographic hash, so that records have one size.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import PurePath
from typing import Final, Literal, Protocol, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError
from lightning_shards.shards.urls import (
    is_local,
    redact,
    redact_pattern,
    scheme_of,
    split_joined,
)

RowNumbers: TypeAlias = NDArray[np.int64]
"""Numbers of rows or of samples."""

RowValues: TypeAlias = list[bytes | None]
"""The bytes of keys or values; None where a row has none."""


class RowChunk(Protocol):
    """Consecutive rows."""

    @property
    def num_rows(self) -> int:
        """How many."""
        ...

    def values(self, rows: RowNumbers) -> RowValues:
        """The values of these rows, numbered from the first one of the chunk."""
        ...


class JoinTable(Protocol):
    """A table that is read from its beginning any number of times.

    `keys` and `chunks` give the same rows in the same order, and few of them at a time.
    """

    @property
    def num_rows(self) -> int:
        """Rows of the whole table."""
        ...

    def row_name(self, row: int) -> str:
        """Where a row is, for messages, by its number in the table."""
        ...

    def keys(self) -> Iterator[RowValues]:
        """The keys of all rows."""
        ...

    def chunks(self) -> Iterator[RowChunk]:
        """All rows."""
        ...


HASHED: Final = np.dtype([("high", "<u8"), ("low", "<u8"), ("number", "<i8")])
"""The hash of a key, and the number of its sample or row."""

PAIR: Final = np.dtype([("row", "<i8"), ("sample", "<i8")])
"""A row, and a sample that has its key."""

_HASH_BYTES: Final = 16

Hashed: TypeAlias = NDArray[np.void]


def hashed(keys: Sequence[bytes], numbers: Iterable[int]) -> Hashed:
    """A record of dtype `HASHED` for each key, with these numbers."""
    records = np.empty(len(keys), HASHED)
    data = b"".join(blake2b(key, digest_size=_HASH_BYTES).digest() for key in keys)
    halves = np.frombuffer(data, "<u8").reshape(-1, 2)
    records["high"], records["low"] = halves.T
    records["number"] = np.fromiter(numbers, np.int64, len(keys))
    return records


def match(samples: Hashed, rows: Hashed) -> tuple[NDArray[np.void], tuple[int, int] | None]:
    """The pairs of all: each sample with the row that has its key, in the order of the rows.

    Returns:
        The pairs, of dtype `PAIR`, and the numbers of two rows that have the same key; None if
        there are no such rows.
    """
    # records: rows first, so that a stable sort puts the row before the samples of its key.
    records = np.concatenate([rows, samples])
    is_row = np.arange(len(records)) < len(rows)
    order = np.lexsort((records["low"], records["high"]))
    sorted_records, is_row = records[order], is_row[order]
    is_first = np.ones(len(records), bool)
    for half in ("high", "low"):
        values = sorted_records[half]
        differs = values[1:] != values[:-1]
        is_first[1:] = differs if half == "high" else is_first[1:] | differs
    doubled = np.flatnonzero(is_row[1:] & is_row[:-1] & ~is_first[1:])
    if len(doubled):
        first, second = sorted_records["number"][doubled[0] : doubled[0] + 2].tolist()
        return np.empty(0, PAIR), (first, second)
    # row_of_key: the number of the row with each different key, -1 where there is none.
    key_numbers = np.cumsum(is_first) - 1
    row_of_key = np.full(int(is_first.sum()), -1, np.int64)
    row_of_key[key_numbers[is_row]] = sorted_records["number"][is_row]
    rows_of_samples = row_of_key[key_numbers[~is_row]]
    has_row = rows_of_samples >= 0
    pairs = np.empty(int(has_row.sum()), PAIR)
    pairs["row"] = rows_of_samples[has_row]
    pairs["sample"] = sorted_records["number"][~is_row][has_row]
    return pairs[np.argsort(pairs["row"], kind="stable")], None


Missing: TypeAlias = Literal["none", "raise"]

KEY: Final = "__key__"
"""The column that is matched with the keys of samples, where none is named."""

ROW: Final = "row"
"""Stands for the suffix of a member where values come from the rows of a Parquet table."""

_SETTINGS: Final = ("table", "key", "column", "missing")
_TARS: Final = (".tar",)
_PARQUET: Final = (".parquet", ".pq")


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """One join: a table, and which of its columns becomes a field.

    Attributes:
        name: The key of the field in samples and batches.
        table: Patterns of the Parquet files or the tars that are the table, which may be remote.
        key: The column of a Parquet table that is matched with the samples' `__key__`.
        column: The column whose values are taken; of tars the suffix of their members. None: the
            column named like the join, or the only one beside the key.
        missing: What becomes of samples without a value: ``none`` gives them None or the default
            of the field, ``raise`` makes them an error.
    """

    name: str
    table: tuple[str, ...] = field(repr=False)  # may hold what is secret
    key: str
    column: str | None
    missing: Missing

    @property
    def is_tar(self) -> bool:
        """Whether the table is a second set of tars with the same keys."""
        return _ends_with(self.table[0], _TARS)

    @property
    def member_text(self) -> str:
        """What stands for the join in `fields`: a suffix, with a `?` where values may be missing.

        >>> JoinSettings("caption", ("a.tar",), KEY, "txt", "none").member_text
        'txt?'
        """
        suffix = self.column if self.is_tar and self.column else ROW
        return suffix if self.missing == "raise" else f"{suffix}?"


def join_settings(join: Mapping[str, object]) -> tuple[JoinSettings, ...]:
    """The settings of joins, checked.

    Args:
        join: Name of the join to its table, or to a dict of its settings.

    Raises:
        ConfigError: A setting is wrong; the message names the join, the value and the remedy.
    """
    return tuple(_settings(name, given) for name, given in join.items())


def shown_joins(join: object) -> object:
    """What was given as `join` without what is secret in URLs, for messages.

    >>> shown_joins({"a": {"table": "https://me:secret@host/a.parquet"}})
    {'a': {'table': 'https://host/a.parquet'}}
    """
    if isinstance(join, str):
        return redact_pattern(join)
    if isinstance(join, Mapping):
        given = cast("Mapping[object, object]", join)
        return {name: shown_joins(value) for name, value in given.items()}
    if isinstance(join, list | tuple):
        return [shown_joins(value) for value in cast("Sequence[object]", join)]
    return join


def _settings(name: str, given: object) -> JoinSettings:
    values: Mapping[str, object] = {"table": given}
    if isinstance(given, Mapping):
        values = cast("Mapping[str, object]", given)
    if not name or name.startswith(("__", ".")):
        raise ConfigError(
            f"join {name!r} has a name that begins with '__' or '.', or none; give it the key that "
            "its values shall have in batches"
        )
    unknown = sorted(map(str, values.keys() - set(_SETTINGS)))
    if unknown or not values.get("table"):
        what = f"has an unknown setting {unknown[0]!r}" if unknown else "names no table"
        raise ConfigError(
            f"join {name!r} {what}; its settings are table (needed), key, column and missing, as "
            f"in {{{name}: {{table: table.parquet, key: {KEY}}}}}"
        )
    missing = values.get("missing", "none")
    if missing not in get_args(Missing):
        raise ConfigError(
            f"missing of join {name!r} is {missing!r}; take 'none', which gives samples without a "
            "row the value None, or 'raise'"
        )
    for setting in ("key", "column"):
        value = values.get(setting)
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigError(
                f"{setting} of join {name!r} must be the name of a column, got {value!r}"
            )
    key, column = cast("str | None", values.get("key")), cast("str | None", values.get("column"))
    table = _tables(name, values["table"])
    settings = JoinSettings(name, table, key or KEY, column, cast("Missing", missing))
    if settings.is_tar:
        _require_suffix(settings, key)
    return settings


def _tables(name: str, given: object) -> tuple[str, ...]:
    """The patterns of a table, all of one kind."""
    listed: object = [given] if isinstance(given, str | PurePath) else given
    if isinstance(listed, list | tuple):
        paths = cast("Sequence[object]", listed)
        listed = [str(path) if isinstance(path, PurePath) else path for path in paths]
    if not isinstance(listed, list) or not all(
        isinstance(path, str) for path in cast("list[object]", listed)
    ):
        raise ConfigError(
            f"table of join {name!r} must be a path, a pattern or a list of them, got "
            f"{type(given).__name__}"
        )
    parts = tuple(part for path in cast("list[str]", listed) for part in split_joined(path))
    for endings in (_TARS, _PARQUET):
        if all(_ends_with(part, endings) for part in parts):
            return parts
    raise ConfigError(
        f"table of join {name!r} is {list(map(redact_pattern, parts))}; name either Parquet files, "
        "which end in .parquet, or tars, which end in .tar"
    )


def _ends_with(pattern: str, endings: tuple[str, ...]) -> bool:
    """Whether the name of the files ends so, without what a URL asks for behind it."""
    name = pattern if is_local(pattern) else redact(pattern)
    return scheme_of(pattern) != "pipe" and name.rstrip("}").endswith(endings)


def _require_suffix(settings: JoinSettings, key: str | None) -> None:
    name, column = settings.name, settings.column
    if key is not None and key != KEY:
        raise ConfigError(
            f"key={key!r} of join {name!r} has no effect, because its tars have the keys of their "
            "samples; leave it out"
        )
    if column is None or column.startswith(".") or not set(column).isdisjoint(";?"):
        raise ConfigError(
            f"join {name!r} reads tars, and column={column!r} is not the suffix of their members; "
            "set one suffix, without a dot before it, as in column: txt"
        )
