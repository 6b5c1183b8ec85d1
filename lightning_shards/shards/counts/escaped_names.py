"""Names of files, which the URLs of web servers escape: `a%20b.tar` names the file `a b.tar`.

The keys of object stores are names as they are: a % in one is its own.
"""

from typing import Final
from urllib.parse import quote, unquote

from lightning_shards.shards.urls import scheme_of

_WEB: Final = ("http", "https")
_UNESCAPED: Final = "/!$&'()*+,;=:@"  # in a path; some stores take an escaped + for another name


def unescaped(name: str, url: str) -> str:
    """A part of the path of this URL, as the file is named.

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
