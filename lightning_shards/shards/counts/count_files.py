"""Counts in files beside the shards: wids JSON and `sizes.json`, otherwise `count_formats`.

Such a file is data and may come from a stranger: it is only compared, by file name, with the shards
that the user named, and no path in it is opened. Two files that disagree are an error, because one
of them is wrong. A file that cannot be read is passed over, because the shards can be scanned.
"""

import json
import logging
import re
import urllib.error
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast
from urllib.parse import unquote

from lightning_shards.errors import IndexMismatchError
from lightning_shards.shards import beside
from lightning_shards.shards.beside import (
    SIZES,
    WIDS,
    is_count,
    json_files,
    json_object,
    read_json,
)
from lightning_shards.shards.counts.count_formats import (
    LENGTH,
    MAX_HEADER,
    REMOTE_NAMES,
    counts_in,
    length_in,
    other_counts,
)
from lightning_shards.shards.counts.wids import MARKER, counted_shards
from lightning_shards.shards.urls import redact, scheme_of, split_url, url_beside, without_user

HTTP_TIMEOUT_S: Final = 10.0

_WEB: Final = ("http", "https")
_ABSENT = (403, 404)  # object stores answer 403 for what may not be listed
_UNSAFE_NAME = re.compile(r"^/|^[A-Za-z][A-Za-z0-9+.-]*:|[${}\\]|(^|/)\.\.(/|$)")

FetchBeside = Callable[[str, int], bytes | None]
"""Fetches at most so many bytes of a file, and one more; None if it is absent. It raises OSError if
the server does not answer."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CountClaim:
    """The count that one file gives for one shard.

    Attributes:
        samples: Samples in the shard.
        source: Path or URL of the file that says so.
        size_bytes: Size of the shard when it was counted, if the file has it.
        md5: Its MD5 then, if the file has it.
    """

    samples: int
    source: str
    size_bytes: int | None = None
    md5: str | None = None


def local_claims(folder: str, names: Iterable[str]) -> dict[str, CountClaim]:
    """The counts that the files in a local folder give for these of its shards.

    Raises:
        IndexMismatchError: Two files disagree, or a shard's size is not the one that was indexed.
    """
    wanted = frozenset(names)
    parts = Path(folder).absolute().parts
    claims: dict[str, CountClaim] = {}
    for path in json_files(Path(folder)):
        marker = b"" if path.name == SIZES else MARKER
        content = read_json(path, containing=marker)
        for name, claim in _claims(content, str(path), parts, wanted):
            _check_size(Path(folder) / name, claim)
            _merge(claims, name, claim)
    others = other_counts(Path(folder), wanted - claims.keys())
    for name, samples, source in others:
        if is_count(samples):
            claims[name] = CountClaim(samples, source)
    return claims


def remote_claims(
    shard: str, names: Iterable[str], fetch: FetchBeside | None = None
) -> dict[str, CountClaim]:
    """The counts that `sizes.json` and `wids.json`, or other tools' files, give beside a shard.

    A file that cannot be read gives no counts; errors of the server show when shards are read.

    Args:
        shard: URL of a remote shard, whose user, password and query go with the files, too.
        names: File names of the shards of its folder that are asked for.
        fetch: Fetches a file; None for one request to a web server.

    Raises:
        IndexMismatchError: The two files disagree.
    """
    asked = frozenset(names)
    named = {unquote(name): name for name in asked if "%" in name and scheme_of(shard) in _WEB}
    wanted = asked | named.keys()  # files have names as they are, or as URLs escape them
    parts = tuple(split_url(shard)[0].split("/"))
    claims: dict[str, CountClaim] = {}
    for file_name in (SIZES, WIDS, *REMOTE_NAMES):
        if file_name in REMOTE_NAMES and asked <= claims.keys():
            break
        url = url_beside(shard, file_name)
        source = redact(url)
        try:
            content = _fetch_json(url, fetch or _fetch)
        except OSError as error:
            _log.info("no counts from %s: %s", source, error)
            break  # the server does not answer: waiting once is enough
        for name, claim in _claims(content, source, parts, wanted):
            _merge(claims, name if name in asked else named[name], claim)
    return claims


def remote_total(shard: str, fetch: FetchBeside | None = None) -> int | None:
    """The samples that open_clip's `__len__` counts in all shards of this remote shard's folder.

    None if there is no such number. It does not say which shards it counts.
    """
    url = url_beside(shard, LENGTH)
    source = redact(url)
    try:
        content = (fetch or _fetch)(url, MAX_HEADER)
    except OSError as error:
        _log.info("no total from %s: %s", source, error)
        return None
    if content is None:
        return None
    total = length_in(content)
    if not total or not is_count(total):
        _log.warning("%s is passed over: %r is no number of samples", source, content[:40])
        return None
    _log.info(
        "%s counts %d samples in all shards of its folder: the size of an epoch under "
        "sampling='resampled'; if only a part of them is named, set dataset_size",
        source,
        total,
    )
    return total


def http_start(url: str, num_bytes: int) -> bytes | None:
    """The first bytes of a shard on a web server, or all bytes if fewer; None without an answer.

    This is one request; the rest is left unread if the server sends the whole shard.
    """
    from http.client import HTTPException  # local shards need neither of these
    from urllib.request import Request, urlopen

    request = Request(without_user(url), headers={"Range": f"bytes=0-{num_bytes - 1}"})  # noqa: S310
    try:
        with urlopen(request, timeout=HTTP_TIMEOUT_S) as reply:  # noqa: S310
            return cast("bytes", reply.read(num_bytes))
    except (OSError, HTTPException, ValueError) as error:
        _log.info("no first bytes of %s: %s", redact(url), type(error).__name__)
        return None


def _fetch_json(url: str, fetch: FetchBeside) -> object:
    """The content of a remote JSON file; None if it is absent, too large or not JSON."""
    data = fetch(url, beside.MAX_INDEX_BYTES)
    if data is None:
        return None
    if len(data) > beside.MAX_INDEX_BYTES:
        _log.warning(
            "%s is passed over: it has more than the %s bytes that such a file may have; remake it",
            redact(url),
            f"{beside.MAX_INDEX_BYTES:,}",
        )
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        _log.info("no counts from %s: %s", redact(url), error)
    return None


def _fetch(url: str, max_bytes: int) -> bytes | None:
    """A file on a web server, at most `max_bytes` + 1 bytes of it; None if it is absent."""
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        # Only folders of http(s) shards get here.
        with urlopen(without_user(url), timeout=HTTP_TIMEOUT_S) as reply:  # noqa: S310
            return cast("bytes", reply.read(max_bytes + 1))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code not in _ABSENT:
            _log.info("no counts from %s: %s", redact(url), error)
    except HTTPException as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    return None


def _claims(
    content: object, source: str, folder: tuple[str, ...], names: frozenset[str]
) -> Iterator[tuple[str, CountClaim]]:
    """The counts that the content of one JSON file gives for these shards, by file name."""
    fields = json_object(content)
    if fields.get("wids_version") == 1:
        yield from _wids_claims(fields, source, folder, names)
        return
    is_sizes = source.rpartition("/")[2] == SIZES
    counts = fields if is_sizes else counts_in(fields) if source.endswith(REMOTE_NAMES) else {}
    for name in names & counts.keys():
        samples = counts[name]
        if is_count(samples):
            yield name, CountClaim(samples, source)
        else:
            _log.warning("%s is no count of %s in %s", repr(samples)[:40], name, source)


def _wids_claims(
    fields: dict[str, object], source: str, folder: tuple[str, ...], names: frozenset[str]
) -> Iterator[tuple[str, CountClaim]]:
    """The counts that a wids index gives for these shards.

    An entry whose path ends in this folder is certain to be meant. An entry with another folder
    (the shards were moved) counts if all with its file name say the same; of different MD5s none is
    believed.
    """
    certain: set[str] = set()
    moved: dict[str, set[CountClaim]] = {}
    for shard in counted_shards(fields):
        parts = entry_parts(fields.get("base"), shard.url)
        if not parts or parts[-1] not in names:
            continue
        claim = CountClaim(shard.samples, source, shard.size_bytes, shard.md5)
        above = parts[:-1]
        if not above or folder[-len(above) :] == above:
            certain.add(parts[-1])
            yield parts[-1], claim
        else:
            moved.setdefault(parts[-1], set()).add(claim)
    for name, claims in moved.items():
        if name not in certain:
            alike = claims if len(claims) == 1 else {replace(claim, md5=None) for claim in claims}
            yield from ((name, claim) for claim in alike if len(alike) == 1)


def entry_parts(base: object, url: str) -> tuple[str, ...]:
    """The relative path of an entry; empty if it does not lead below the index's folder."""
    path = f"{base.rstrip('/')}/{url}" if isinstance(base, str) and base else url
    parts = () if _UNSAFE_NAME.search(path) else path.split("/")
    return tuple(part for part in parts if part not in ("", "."))


def _merge(claims: dict[str, CountClaim], name: str, claim: CountClaim) -> None:
    """Add a claim, unless another one contradicts it."""
    known = claims.setdefault(name, claim)
    if known.samples != claim.samples:
        raise IndexMismatchError(
            f"{name} holds {known.samples} samples by {known.source}, {claim.samples} by "
            f"{claim.source}; delete or remake the one that is out of date"
        )
    if known.size_bytes is None:
        claims[name] = claim  # it may say how large the shard is


def _check_size(shard: Path, claim: CountClaim) -> None:
    """Refuse a shard that was written again since it was indexed."""
    size = shard.stat().st_size
    if claim.size_bytes not in (None, size):
        raise IndexMismatchError(
            f"{shard} changed since it was indexed: it has {size} bytes, {claim.size_bytes} by "
            f"{claim.source}; remake that index, or fetch the shard again"
        )
