"""The door to pyarrow, which comes with the extra `table`: it reads rows of Parquet files."""

from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from lightning_shards.errors import ConfigError

_ROWS_AT_ONCE = 4096


def parquet_rows(path: str) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file as plain values, a few thousand in memory at a time.

    Raises:
        ConfigError: Pyarrow is not installed, or cannot read the file; or two columns have one
            name.
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
            require_different(file.schema_arrow.names)
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                yield from batch.to_pylist()
    except errors.ArrowException as error:
        raise ConfigError(f"it cannot be read: {error}") from error


def require_different(columns: Iterable[str]) -> None:
    """Refuse two columns of one name, of which a row as a dict would keep the last.

    Raises:
        ConfigError: There are two.
    """
    twice = [name for name, times in Counter(columns).items() if times > 1]
    if twice:
        raise ConfigError(f"two columns are named {twice[0]!r}; give each a name of its own")
