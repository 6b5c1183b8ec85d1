"""The member tables beside remote shards: fetched, checked, and the error where there are none."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from lightning_shards.errors import ConfigError, FileAccessError, IndexMismatchError, count_of
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.storage.protocol import ShardStat, Storage
from lightning_shards.shards.table_bytes import MAX_PUBLISHED_BYTES, published_url, unpublished
from lightning_shards.shards.urls import redact, redact_pattern, scheme_of

_COMMAND: Final = "`lightning-shards index --format wids,members`"
"""What makes published tables."""

_RATE: Final = 100e6
"""Bytes per second at which messages say how long making tables takes."""

_NOT_UPLOADED: Final = ("http", "https", "hf")
"""Schemes whose stores take no files, as a rule."""


def fetched_tables(urls: Sequence[str], storage: Storage) -> Iterator[MemberTable]:
    """The tables beside these remote shards, with size and version of the shards now.

    All are asked for at once, and unpacked one by one: unpacked they take eight times the memory.

    Raises:
        ConfigError: A shard has none.
        FileAccessError: One cannot be used.
        IndexMismatchError: One is of a shard of another size.
        ShardError: The store does not answer.
    """
    tables = list(map(published_url, urls))
    contents, stats = storage.read_beside(tables, MAX_PUBLISHED_BYTES + 1, urls)
    return map(_published_table, urls, contents, stats)


def published_bytes(url: str, storage: Storage) -> bytes | None:
    """The table beside this shard as it is there, or None; errors as of the store."""
    return storage.read_whole([published_url(url)], MAX_PUBLISHED_BYTES + 1)[0]


def opened_table(url: str, data: bytes, shard_bytes: int) -> MemberTable:
    """The table that lies beside this shard; `shard_bytes` limits it as of `unpublished`.

    Raises:
        FileAccessError: It cannot be used.
    """
    try:
        return unpublished(data, shard_bytes)
    except (ValueError, RecursionError) as error:
        raise FileAccessError(
            f"{redact(published_url(url))} cannot be used: {error}; make it again by {_COMMAND}"
        ) from error


def is_beside(url: str, storage: Storage) -> bool:
    """Whether there is a table beside this shard; errors as of the store."""
    return storage.read_whole([published_url(url)], 1)[0] is not None


def index_command(patterns: str) -> str:
    """The command that makes the tables of these remote shards, and what is left to do then.

    >>> index_command("s3://bucket/{000..999}.tar")
    "`lightning-shards index 's3://bucket/{000..999}.tar' --format wids,members --upload`"
    """
    command = f"lightning-shards index {shlex.quote(redact_pattern(patterns))}"
    if scheme_of(patterns) in _NOT_UPLOADED:
        return (
            f"`{command} --format wids,members --output DIR`, and put what is in DIR beside the "
            "shards"
        )
    return f"`{command} --format wids,members --upload`"


def absence(url: str, patterns: str, size_bytes: int, num_shards: int) -> str:
    """The message for a remote shard without a table.

    Args:
        url: The shard.
        patterns: The shards, as the user names them.
        size_bytes: Its size.
        num_shards: Shards that lack tables, about as large as this one.
    """
    return (
        f"the indexed reader needs the member table {redact(published_url(url))}, which is not "
        f"there or may not be read; make it once by {index_command(patterns)}; this takes "
        f"{duration(size_bytes, num_shards)}"
    )


def duration(size_bytes: int, num_shards: int) -> str:
    """How long reading so many shards takes, if all are as large as the one of this size."""
    minutes, seconds = divmod(max(1, round(num_shards * size_bytes / _RATE)), 60)
    text = f"{minutes:,} min {seconds} s" if minutes else f"{seconds} s"
    return f"about {text} at 100 MB/s for {count_of(num_shards, 'shard')}"


def _published_table(url: str, data: bytes | None, stat: ShardStat) -> MemberTable:
    if data is None:
        raise ConfigError(absence(url, url, stat.size, 1))
    table = opened_table(url, data, stat.size)
    if table.file_size != stat.size:
        raise IndexMismatchError(
            f"{redact(url)} has {stat.size:,} bytes (version {stat.version:x}), and its member "
            f"table {redact(published_url(url))} is of a version of "
            f"{table.file_size:,} bytes; make the table again by {_COMMAND}, or put the old shard "
            "back"
        )
    return replace(table, mtime_ns=stat.version)
