"""The door to pyarrow, which comes with the extra `table`: it reads rows of Parquet files."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from lightning_shards.errors import ConfigError

_ROWS_AT_ONCE = 4096


def parquet_rows(path: str) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file as plain values, a few thousand in memory at a time.

    Raises:
        ConfigError: Pyarrow is not installed, or cannot read the file.
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
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                yield from batch.to_pylist()
    except errors.ArrowException as error:
        raise ConfigError(f"it cannot be read: {error}") from error
