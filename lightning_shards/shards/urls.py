"""The parts of the URLs of shards, and what of them may be shown.

The scheme of a URL decides how it is opened; a local path that merely looks like a URL is therefore
written with `./`.
"""

# Shards are strings: pathlib would take off the leading ./ that keeps them local.
# ruff: noqa: PTH118, PTH120
import os
import re
from typing import Final
from urllib.parse import quote, unquote

LOCAL: Final = ("", "file")
_WEB: Final = ("http", "https")
_UNESCAPED: Final = "/!$&'()*+,;=:@"  # in a path; some stores take an escaped + for another name
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_INNER = re.compile(r"://|pipe:")
BEFORE_QUERY: Final = re.compile(r"(?=[?#])|$")  # or behind the end
_AUTHORITY_END = re.compile("[/?#]")
_BROKEN_PASSWORD = re.compile(
    r"[^:/]*://(?:[^/?#]*@)?[^/?#@\[\]:]*:(?!\d+[/?#])[^/?#@]*[/?#].*@", re.DOTALL
)
_SIGNING: Final = re.compile(
    "x-amz-.*|awsaccesskeyid|key-pair-id|policy|signature|expires"  # S3, CloudFront
    "|x-goog-.*|googleaccessid"
    "|sig|s[epvrst]|srt|spr|sip|skoid|sktid|sk[tesv]"  # Azure
    "|token|access_token",
    re.IGNORECASE,
)
"""Names in a query that sign a URL: their values change from day to day, the object does not."""


def scheme_of(url: str) -> str:
    """The scheme in lower case; empty for a plain path."""
    match = _SCHEME.match(url.lstrip())
    return match[1].lower() if match else ""


def is_local(url: str) -> bool:
    """Whether the shard is a file of this machine (a plain path or a `file:` URL)."""
    return scheme_of(url) in LOCAL


def redact(url: str) -> str:
    """The URL as messages may show it: no user, no password, no query, no command's arguments.

    >>> redact("https://user:secret@host/000.tar?signature=secret")
    'https://host/000.tar'
    >>> redact("pipe:curl -H secret https://host/000.tar")
    'pipe:curl ...'
    """
    scheme = scheme_of(url)
    if scheme in LOCAL:
        return url if scheme else _without_inner(url)
    if scheme == "pipe":
        given, _, command = url.strip().partition(":")
        # Stop at a "=", too: the first word may set a variable, as in TOKEN=secret curl ...
        program = re.split(r"[\s=]", command.strip(), maxsplit=1)[0]
        return f"{given}:{program} ..."
    return _redact_remote(url)


def _redact_remote(url: str) -> str:
    url = url.strip()
    if has_broken_password(url):
        url = f"{url.partition('://')[0]}://{url.rpartition('@')[2]}"
    address = BEFORE_QUERY.split(split_user(url)[0], maxsplit=1)[0]
    scheme, slashes, rest = address.partition("://")
    return f"{scheme}{slashes}{_without_inner(rest)}"


def has_broken_password(url: str) -> bool:
    """Whether a `/`, `?` or `#` seems to end a URL's host within its password.

    What stands for the port is then no number, and an `@` follows.

    >>> has_broken_password("https://me:se/cret@host/0.tar")
    True
    >>> has_broken_password("https://host:8080/me@0.tar")
    False
    """
    return _BROKEN_PASSWORD.match(url) is not None


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
    if scheme in LOCAL:
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
    """The path or URL of a file in the folder of a shard; user, password and query are kept.

    >>> url_beside("https://host/data/000.tar?sig=1", "classes.json")
    'https://host/data/classes.json?sig=1'
    """
    if is_local(url):
        return plain_path(os.path.join(os.path.dirname(url), name))
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


def plain_path(path: str) -> str:
    """The path, written so that it can only be taken for a file (`-` is webdataset's stdin)."""
    looks_special = ":" in path or path == "-"
    return os.path.join(".", path) if looks_special and not path.startswith(("/", ".")) else path
