"""Expansion of the user's patterns into a list of shards: braces, `::`, wildcards, `file:` URLs.

Patterns may come from a YAML file, so nothing here opens a shard, and a URL that would run a
program when opened (`pipe:`) is refused at once. webdataset decides by the scheme of a URL how to
open it; a local path that merely looks like a URL is therefore written with `./`.
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
from urllib.parse import quote, unquote

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

MAX_EXPANDED: Final = 10**6
"""Shards that the braces of one data set may stand for."""

_MOST_DIGITS: Final = 18
_LOCAL: Final = ("", "file")
_WEB: Final = ("http", "https")
_UNESCAPED: Final = "/!$&'()*+,;=:@"  # in a path; some stores take an escaped + for another name
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_INNER = re.compile(r"://|pipe:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OF_A_SHELL = re.compile(r"\$\{\w+\}|\$[A-Z][A-Z0-9_]*|(?<=\.tar)[,; ]+(?=\S)")
_WILDCARDS = re.compile(r"[*?[]")
BEFORE_QUERY: Final = re.compile(r"(?=[?#])|$")  # or behind the end
_AUTHORITY_END = re.compile("[/?#]")
_REMOTE_WILDCARDS = re.compile(r"[][*{}]")
_SIGNING: Final = re.compile(
    "x-amz-.*|awsaccesskeyid|key-pair-id|policy|signature|expires"  # S3, CloudFront
    "|x-goog-.*|googleaccessid"
    "|sig|s[epvrst]|srt|spr|sip|skoid|sktid|sk[tesv]"  # Azure
    "|token|access_token",
    re.IGNORECASE,
)
"""Names in a query that sign a URL: their values change from day to day, the object does not."""

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


def scheme_of(url: str) -> str:
    """The scheme in lower case; empty for a plain path."""
    match = _SCHEME.match(url.lstrip())
    return match[1].lower() if match else ""


def is_local(url: str) -> bool:
    """Whether the shard is a file of this machine (a plain path or a `file:` URL)."""
    return scheme_of(url) in _LOCAL


def redact(url: str) -> str:
    """The URL as messages may show it: no user, no password, no query, no command's arguments.

    >>> redact("https://user:secret@host/000.tar?signature=secret")
    'https://host/000.tar'
    >>> redact("pipe:curl -H secret https://host/000.tar")
    'pipe:curl ...'
    """
    scheme = scheme_of(url)
    if scheme in _LOCAL:
        return url if scheme else _without_inner(url)
    if scheme == "pipe":
        given, _, command = url.strip().partition(":")
        # Stop at a "=", too: the first word may set a variable, as in TOKEN=secret curl ...
        program = re.split(r"[\s=]", command.strip(), maxsplit=1)[0]
        return f"{given}:{program} ..."
    return _redact_remote(url)


def _redact_remote(url: str) -> str:
    scheme, _, rest = url.strip().partition(":")
    if rest.startswith("//") and has_broken_password(url):
        rest = f"//{rest.rpartition('@')[2]}"
    rest = rest.partition("?")[0].partition("#")[0]
    if not rest.startswith("//"):
        return f"{scheme}:{rest}"
    authority, slash, path = rest[2:].partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{_without_inner(path)}"


def has_broken_password(url: str) -> bool:
    """Whether a `/`, `?` or `#` seems to end a URL's host within its password.

    What stands for the port is then no number, and an `@` follows.

    >>> has_broken_password("https://me:se/cret@host/0.tar")
    True
    >>> has_broken_password("https://host:8080/me@0.tar")
    False
    """
    rest = url.partition("://")[2]
    if "@" not in rest:
        return False
    authority = _AUTHORITY_END.split(rest, maxsplit=1)[0]
    _, colon, port = authority.rpartition("@")[2].rpartition("]")[2].partition(":")
    return bool(colon) and not port.isdecimal() and "@" in rest[len(authority) :]


def _without_inner(text: str) -> str:
    """The text up to a URL within it, as in `{https://user:secret@host/0,b}.tar`."""
    inner = _INNER.search(text)
    return f"{text[: inner.end()]}..." if inner else text


def redact_pattern(pattern: str) -> str:
    """Patterns joined by `::` as messages may show them: `redact` is applied to each."""
    return "::".join(map(redact, pattern.split("::")))


def split_url(url: str) -> tuple[str, str]:
    """Folder and file name of a shard, without user, password and query.

    The folder of `000.tar` is the empty string. A `pipe:` URL has the folder `pipe:` and the whole
    command as its name, which is only compared and hashed.
    """
    scheme = scheme_of(url)  # once: a data set has up to 10^6 shards
    if scheme == "pipe":
        return "pipe:", url
    if scheme in _LOCAL:
        return os.path.split(url)
    folder, _, name = _redact_remote(url).rpartition("/")
    return folder, name


def split_user(url: str) -> tuple[str, str]:
    """A URL without its user and password, and these.

    >>> split_user("https://me:secret@host:8443/a//b@c?c=d@e")
    ('https://host:8443/a//b@c?c=d@e', 'me:secret')
    """
    if "@" not in url:
        return url, ""
    scheme, slashes, rest = url.partition("://")
    user, at, _ = _AUTHORITY_END.split(rest, maxsplit=1)[0].rpartition("@")
    return (f"{scheme}{slashes}{rest[len(user) + len(at) :]}", user) if at else (url, "")


def without_credentials(url: str) -> str:
    """The URL without user, password, and what signs it; other parts of its query may matter.

    >>> without_credentials("https://me:secret@host/0.tar?versionId=3&X-Amz-Signature=secret")
    'https://host/0.tar?versionId=3'
    """
    address, mark, query = split_user(url)[0].partition("?")
    if not query:
        return address
    kept = [part for part in query.split("&") if not _SIGNING.fullmatch(part.partition("=")[0])]
    return address + (mark if any(kept) else "") + "&".join(kept)


def url_beside(url: str, name: str) -> str:
    """The URL of a file in the folder of a remote shard; user, password and query are kept.

    >>> url_beside("https://host/data/000.tar?sig=1", "classes.json")
    'https://host/data/classes.json?sig=1'
    """
    path, query = BEFORE_QUERY.split(url, maxsplit=1)
    return f"{path.rpartition('/')[0]}/{name}{query}"


def unescaped(name: str, url: str) -> str:
    """A part of the path of this URL, as the file is named.

    The keys of object stores are names as they are: a % in one is its own.

    >>> unescaped("a%20b.tar", "https://host/a%20b.tar"), unescaped("a%20b.tar", "s3://c/a%20b.tar")
    ('a b.tar', 'a%20b.tar')
    """
    return unquote(name, errors="surrogateescape") if scheme_of(url) in _WEB else name


def escaped(path: str, url: str) -> str:
    """The path of a file, as a URL of the same kind as this one names it.

    >>> escaped("a b/c.tar", "https://host/"), escaped("a b/c.tar", "s3://bucket/")
    ('a%20b/c.tar', 'a b/c.tar')
    """
    return quote(path, _UNESCAPED, errors="surrogateescape") if scheme_of(url) in _WEB else path


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


def file_name(url: str) -> str:
    """The name of a shard, with a stand-in where a URL has none.

    >>> file_name("https://user:secret@host/data/000.tar?signature=secret")
    '000.tar'
    >>> file_name("pipe:aws s3 cp s3://bucket/000.tar -")
    'shard.tar'
    """
    folder, name = split_url(url)
    return "shard.tar" if folder == "pipe:" or name in ("", ".", "..") else name


def _braces(pattern: str, most: int) -> list[str]:
    """The urls that the braces of a pattern stand for, at most so many."""
    urls: list[str] | None = None
    too_many = any(_num_steps(*bounds) >= MAX_EXPANDED for bounds in _RANGE.findall(pattern))
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


def _num_steps(first: str, last: str, step: str) -> int:
    """How many numbers follow the first one of a range; with longer numbers it is no range."""
    if max(map(len, (first, last, step))) > _MOST_DIGITS:
        return MAX_EXPANDED
    return abs(int(last) - int(first)) // (int(step or 1) or 1)


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
    if not (scheme in _LOCAL and os.path.exists(url)) and (match := _OF_A_SHELL.search(path)):
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
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise UrlError(
                f"{url!r} names the machine {host!r}; a file: url is file:///absolute/path or "
                "file:relative/path, on this machine"
            )
        rest = slash + path
    path = unquote(rest)
    if not path or _CONTROL.search(path):
        raise UrlError(f"{url!r} names no file; write file:///absolute/path or file:relative/path")
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


def plain_path(path: str) -> str:
    """The path, written so that it can only be taken for a file (`-` is webdataset's stdin)."""
    looks_special = ":" in path or path == "-"
    return os.path.join(".", path) if looks_special and not path.startswith(("/", ".")) else path
