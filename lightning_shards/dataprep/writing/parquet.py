"""The door to pyarrow, which comes with the extra `table`: it reads rows of Parquet files."""

from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from lightning_shards.errors import ConfigError

_ROWS_AT_ONCE = 4096


def parquet_rows(path: str, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """These columns of a Parquet file as rows of plain values, a few thousand in memory at a time.

    Raises:
        ConfigError: Pyarrow is not installed, or cannot read the file; two columns have one name,
            or one that is named is absent; or Python has no such value.
    """
    try:
        parquet: Any = import_module("pyarrow.parquet")
        errors: Any = import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(
            "Parquet needs pyarrow, which is not installed: pip install 'lightning-shards[table]'"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            present = file.schema_arrow.names
            require_different(present)
            wanted, num_rows = list(dict.fromkeys(names)), 0
            for name in wanted:
                if name not in present:
                    raise ConfigError(f"it has no column {name!r}, but {', '.join(present)}")
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=wanted):
                columns = [_plain_values(batch.column(name), name, num_rows) for name in wanted]
                yield from (
                    dict(zip(wanted, row, strict=True)) for row in zip(*columns, strict=True)
                )
                num_rows += len(batch)
    except errors.ArrowException as error:
        raise ConfigError(f"it cannot be read: {error}") from error


def _plain_values(column: Any, name: str, rows_before: int) -> list[Any]:
    values: list[Any] = []
    try:
        for value in column:
            values.append(value.as_py())  # noqa: PERF401 the length tells the row of an error
    except (ValueError, OverflowError) as error:  # such as text that is no UTF-8, a far date
        row = rows_before + len(values) + 1
        raise ConfigError(
            f"row {row}, column {name!r} cannot be read; store it as UTF-8 text: {error}"
        ) from error
    return values


def require_different(columns: Iterable[str]) -> None:
    """Refuse two columns of one name, of which a row as a dict would keep the last.

    Raises:
        ConfigError: There are two.
    """
    twice = [name for name, times in Counter(columns).items() if times > 1]
    if twice:
        raise ConfigError(f"two columns are named {twice[0]!r}; give each a name of its own")
