"""Member tables that lie beside remote shards, as `<shard>.members`.

The form is that of a kept table (`members`), compressed with zlib. The time of change in its
stamp is 0, because another machine would give its copy of the shard another one.
"""

import shlex
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from lightning_shards.errors import ConfigError, FileAccessError, IndexMismatchError
from lightning_shards.shards.members import MemberTable, packed, unpacked
from lightning_shards.shards.storage.protocol import ShardStat, Storage
from lightning_shards.shards.urls import BEFORE_QUERY, is_local, redact, redact_pattern

MAX_PUBLISHED_BYTES: Final = 1 << 30
"""Bytes of a published table at most; of 10^7 small members it has about 200 MB."""

_COMMAND: Final = "`lightning-shards index --format wids,members`"
"""What makes published tables."""


def published_url(url: str) -> str:
    """Where the published table of a shard lies; the query of a remote shard's URL is kept.

    A `#` or `?` in a path, or in the name of a file, belongs to that name.

    >>> published_url("https://host/000.tar?sig=1"), published_url("s3://bucket/000.tar")
    ('https://host/000.tar.members?sig=1', 's3://bucket/000.tar.members')
    >>> published_url("data/a#1.tar"), published_url("a:b?.tar")
    ('data/a#1.tar.members', 'a:b?.tar.members')
    """
    if is_local(url) or "://" not in url:  # a name with a colon in it is no URL
        return f"{url}.members"
    return BEFORE_QUERY.sub(".members", url, count=1)


def published(table: MemberTable) -> bytes:
    """The table as it lies beside a shard."""
    return zlib.compress(packed(replace(table, mtime_ns=0)))


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
    contents, stats = storage.read_beside(tables, MAX_PUBLISHED_BYTES, urls)
    return map(_published_table, urls, contents, stats)


def opened_table(url: str, data: bytes) -> MemberTable:
    """The table that lies beside this shard.

    Raises:
        FileAccessError: It cannot be used.
    """
    try:
        return unpacked(zlib.decompress(data))
    except (ValueError, zlib.error) as error:
        raise FileAccessError(
            f"{redact(published_url(url))} cannot be used: it is not whole, or no table ({error}); "
            f"make it again by {_COMMAND}"
        ) from error


def index_command(patterns: str) -> str:
    """The command that makes the tables of these remote shards."""
    return (
        f"`lightning-shards index {shlex.quote(redact_pattern(patterns))} --format wids,members "
        "--output DIR`, with DIR as `index` of the split or its files beside the shards (--upload "
        "puts them into a bucket)"
    )


def absence(url: str, patterns: str) -> str:
    """The message for a remote shard without a table; users name it and others by `patterns`."""
    return (
        f"the indexed reader needs the member table {redact(published_url(url))}, which is not "
        f"there or may not be read; make it once by {index_command(patterns)}"
    )


def _published_table(url: str, data: bytes | None, stat: ShardStat) -> MemberTable:
    if data is None:
        raise ConfigError(absence(url, url))
    table = opened_table(url, data)
    if table.file_size != stat.size:
        raise IndexMismatchError(
            f"{redact(url)} has {stat.size:,} bytes (version {stat.version:x}), and its member "
            f"table {redact(published_url(url))} is of a version of "
            f"{table.file_size:,} bytes; make the table again by {_COMMAND}, or put the old shard "
            "back"
        )
    return replace(table, mtime_ns=stat.version)
