"""Expansion of the user's patterns into a list of shards: braces, `::`, wildcards, `file:` URLs.

Patterns may come from a YAML file, so nothing here opens a shard, and a URL that would run a
program when opened (`pipe:`) is refused at once.
"""

# Shards are strings: pathlib would take off the leading ./ that keeps them local.
# ruff: noqa: PTH110, PTH111, PTH112, PTH113, PTH118, PTH119, PTH120, PTH207
import glob
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Final
from urllib.parse import unquote

from braceexpand import braceexpand

from lightning_shards.errors import (
    ConfigError,
    ShardNotFoundError,
    UnsafeError,
    UrlError,
    count_of,
)
from lightning_shards.shards.files import open_regular
from lightning_shards.shards.scheme_table import SCHEMES, row_of
from lightning_shards.shards.urls import (
    LOCAL,
    has_broken_password,
    is_local,
    plain_path,
    redact,
    scheme_of,
)

MAX_EXPANDED: Final = 10**6
"""Shards that the braces of one data set may stand for."""

_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.-?(\d{1,18}))?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OF_A_SHELL = re.compile(r"\$\{\w+\}|\$[A-Z][A-Z0-9_]*|(?<=\.tar)[,; ]+(?=\S)")
_WILDCARDS = re.compile(r"[*?[]")
_REMOTE_WILDCARDS = re.compile(r"[][*{}]")

_BESIDE = re.compile(
    r"(wids|sizes|classes|_info|repair|.*_stats)\.json|__len__|.*\.(members|idx)|README\.md"
)
"""Names of files that this package and others write beside shards."""

_NUM_NAMED = 3  # missing shards that a message names; the rest are counted


def expand_urls(urls: str | Sequence[str], *, allow_pipe: bool = False) -> list[str]:
    """The shards that the patterns stand for, in the user's order, repeats kept.

    A pattern may hold braces (`{000..012}`, `{a,b}`), several patterns joined by `::`, and, when it
    is local, the wildcards `*`, `?` and `[..]` (matches are sorted) and a leading `~`. `file:` URLs
    come back as plain paths. A plain path need not exist: see `require_local_shards`.

    >>> expand_urls("https://host/train-{08..10}.tar::/data/extra.tar")
    ['https://host/train-08.tar', 'https://host/train-09.tar', 'https://host/train-10.tar', \
'/data/extra.tar']

    Raises:
        UrlError: A pattern is empty, has an unbalanced brace or an unknown scheme, or is a folder;
            it matches a file that lies beside shards, such as `wids.json`; or the braces stand for
            more than `MAX_EXPANDED` shards.
        UnsafeError: A `pipe:` URL without `allow_pipe`.
        ShardNotFoundError: A wildcard matches no file.
    """
    patterns = [urls] if isinstance(urls, str) else list(urls)
    if not patterns:
        raise UrlError("no shards: the list of urls is empty; name at least one shard")
    parts = [part for pattern in patterns for part in pattern.split("::")]
    expanded: list[str] = []
    for part in parts:
        expanded += _braces(part, MAX_EXPANDED - len(expanded))
    return [shard for url in expanded for shard in _resolve(url, allow_pipe=allow_pipe)]


def require_local_shards(urls: Sequence[str]) -> None:
    """Refuse expanded urls if a local one is not a file.

    Raises:
        ShardNotFoundError: Local shards are missing; the error names the first few.
        FileAccessError: One is a fifo, a socket, a device or a folder, or may not be looked at.
    """
    missing = [url for url in dict.fromkeys(urls) if is_local(url) and not os.path.isfile(url)]
    if not missing:
        return
    for url in missing:
        with suppress(ShardNotFoundError):
            os.close(open_regular(url))  # its error says what is there
    named = ", ".join(missing[:_NUM_NAMED])
    more = f" and {len(missing) - _NUM_NAMED} more" if len(missing) > _NUM_NAMED else ""
    folder = os.path.dirname(missing[0]) or "."
    remedy = f"the folder {folder} does not exist on this machine: check the path and the mount"
    if os.path.isdir(folder):
        names = "its name" if len(urls) == 1 else "the names, and the numbers in braces"
        remedy = f"its folder exists: check {names}"
    raise ShardNotFoundError(
        f"{len(missing)} of {count_of(len(urls), 'shard')} missing: {named}{more}; {remedy}"
    )


def require_local(urls: Sequence[str], what: str) -> list[str]:
    """The shards, each once, if all of them are files of this machine.

    Raises:
        ConfigError: A shard is remote.
        ShardNotFoundError: A shard does not exist.
    """
    remote = [url for url in urls if not is_local(url)]
    if remote:
        raise ConfigError(
            f"{what} reads local shards only, and {len(remote)} of {len(urls)} are remote, first "
            f"{redact(remote[0])!r}; copy them here, or mount the bucket"
        )
    require_local_shards(urls)
    return list(dict.fromkeys(urls))


def _braces(pattern: str, most: int) -> list[str]:
    """The urls that the braces of a pattern stand for, at most so many."""
    urls: list[str] | None = None
    too_many = any(
        abs(int(last) - int(first)) >= MAX_EXPANDED * (int(step or 1) or 1)
        for first, last, step in _RANGE.findall(pattern)
    )
    # the messages of these errors hold the whole URL, so they must not become context
    with suppress(ValueError, RecursionError):
        urls = [] if too_many else [url.strip() for url in islice(braceexpand(pattern), most + 1)]
    if urls is None:
        raise UrlError(
            f"unbalanced braces in {redact(pattern)!r}, or too many inside of each other: every "
            "{ needs a }, as in {000000..000009}; a brace that belongs to the name is written \\{"
        )
    if too_many or len(urls) > most:
        raise UrlError(
            f"the braces up to {redact(pattern)!r} stand for more than {MAX_EXPANDED:,} shards; "
            "check the numbers in them, or pack larger shards"
        )
    return urls


def _resolve(url: str, *, allow_pipe: bool) -> list[str]:
    """The shards of one URL without braces: the URL itself, or the files its wildcards match."""
    scheme = scheme_of(url)
    if scheme == "pipe" and not allow_pipe:
        raise UnsafeError(
            f"{redact(url)!r} would run a shell command. If you do need it, set "
            "allow_unsafe=['pipe'] in your own code or on the command line, with urls you trust"
        )
    if scheme == "pipe":
        return [url]
    if not url:
        raise UrlError("an empty url among the shards; take out what stands for it ('', '::')")
    if _CONTROL.search(url):
        raise UrlError(f"a control character in {redact(url)!r}; shard urls hold printable text")
    path = url.partition("?")[0]
    if not (scheme in LOCAL and os.path.exists(url)) and (match := _OF_A_SHELL.search(path)):
        raise UrlError(
            f"{match[0]!r} in {redact(url)!r} is taken as it stands: write a variable as "
            "${oc.env:NAME} in a YAML or os.environ['NAME'] in Python, and shards as [a.tar, b.tar]"
        )
    if scheme == "":
        return _resolve_local(os.path.expanduser(url))
    if scheme == "file":
        return _resolve_local(_path_of_file_url(url))
    _check_remote(url, scheme, allow_pipe=allow_pipe)
    return [url]


def _check_remote(url: str, scheme: str, *, allow_pipe: bool) -> None:
    """Refuse unknown schemes, passwords that end too early, keys, and wildcards."""
    row = row_of(scheme) if scheme in SCHEMES or "://" in url else None
    if row is None:
        allowed = [name for name in SCHEMES if name and (allow_pipe or name != "pipe")]
        raise UrlError(
            f"unknown scheme {scheme!r} in {redact(url)!r}; known are {', '.join(allowed)}, and "
            "what fsspec reads; a local file of that name is written with a leading ./"
        )
    if has_broken_password(url):
        raise UrlError(
            f"the password in {redact(url)!r} holds a /, ? or #, which would end it; write %2F, "
            "%3F or %23 instead"
        )
    if row.client == "cloud" and "@" in url.partition("://")[2].partition("/")[0]:
        raise UrlError(
            f"{redact(url)!r} was given with a user or a key; write {scheme}://BUCKET/KEY, and "
            "keep keys where the tools of this store keep them"
        )
    if _REMOTE_WILDCARDS.search(redact(url)):
        raise UrlError(
            f"a wildcard in {redact(url)!r}: only local folders can be listed; count the shards in "
            "braces, {000..123}, write %5B for a [ that belongs to the name, and an IPv6 host by "
            "its name"
        )


def _path_of_file_url(url: str) -> str:
    """The plain path of `file:///absolute`, `file://localhost/absolute` or `file:relative`."""
    rest = url.partition(":")[2]
    path = unquote(re.sub("^//(localhost)?(?=/)", "", rest))
    if not path or path.startswith("//") or _CONTROL.search(path):
        raise UrlError(
            f"{url!r} names no file of this machine; write file:///absolute/path or "
            "file:relative/path"
        )
    return path


def _resolve_local(path: str) -> list[str]:
    """The path itself, or the files that it matches as a pattern."""
    if os.path.isdir(path):
        files = "*.parquet" if path.endswith(".parquet") else "*.tar"
        raise UrlError(f"{path} is a folder; name the files in it: {os.path.join(path, files)}")
    matches = [path]
    if _WILDCARDS.search(path) and not os.path.exists(path):
        matches = sorted(match for match in glob.glob(path) if not os.path.isdir(match))
    if not matches:
        raise ShardNotFoundError(
            f"no file matches {path}; check the folder and the pattern, and that this machine "
            "sees the folder"
        )
    beside = next((each for each in matches if _BESIDE.fullmatch(os.path.basename(each))), None)
    if beside is not None:
        shards = os.path.join(os.path.dirname(path), "*.tar")
        raise UrlError(
            f"{beside}, which {path} names, is a file that lies beside shards, and not a shard; "
            f"write '{shards}'"
        )
    return [plain_path(match) for match in matches]
