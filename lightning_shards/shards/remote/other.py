"""Shards of any further scheme that fsspec knows: `sftp://`, `ftp://`, `hdfs://` and others.

Few of its file systems know time limits. A worker whose call hangs is ended by its watchdog.
"""

import inspect
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, cast
from urllib.parse import unquote

import fsspec

from lightning_shards.errors import ConfigError
from lightning_shards.shards.remote.backend import (
    FailureKind,
    RangeAnswer,
    RequestBackend,
    RequestFailure,
    closed_failure,
    require_no_secret,
    version_of,
)

_ETAGS: Final = ("ETag", "etag", "e_tag", "md5Hash")
_TIMES: Final = ("LastModified", "last_modified", "mtime", "modified", "modify", "created")

_DROPS_OPTIONS: Final = ("ftp", "hdfs")
"""Schemes whose file systems take any option, and use those alone that their constructor names."""

_USERS: Final = ("username", "user", "password")

_FAILURES: Final[Mapping[str, tuple[str, FailureKind]]] = {
    "FileNotFoundError": ("there is no such file", "absent"),
    "PermissionError": ("this user may not read it", "denied"),
    "AuthenticationException": ("the server does not let this user in", "denied"),  # paramiko
    "TimeoutError": ("the server stalled", "again"),
    "OSError": ("", "again"),
    "EOFError": ("", "again"),
    "SSHException": ("", "again"),  # paramiko, of a connection that broke
    "error_temp": ("", "again"),  # ftplib, as of a server with too many connections
}
"""By the name of a class of errors, of whatever client: what happened, and what is to be done."""


class OtherBackend(RequestBackend):
    """Reads by file systems of fsspec: each thread has its own, until a call on it fails.

    fsspec would keep a file system for ever, also with a connection that broke.

    Args:
        scheme: What fsspec knows it by.
        options: The arguments of that file system, such as `host` and `port`; what a URL says goes
            before them.

    Raises:
        ConfigError: An option looks like a secret.
    """

    def __init__(self, scheme: str, options: Mapping[str, Any]) -> None:
        require_no_secret(scheme, options)
        self._scheme = scheme
        self._options = dict(options)
        self._mine = _OfThread()
        self._has_answered = self._is_closed = False

    @contextmanager
    def get(
        self, url: str, begin: int, end: int, version: str | None
    ) -> Generator[RangeAnswer, None, None]:
        """Read a range, and ask afterwards what the object is: it may be replaced meanwhile."""

        def read() -> RangeAnswer:
            files, path = self._opened(url)
            before = None if version is not None else _described(files, path)
            size = min(end, before[1]) if before else end
            data = cast("bytes", files.cat_file(path, begin, size)) if size > begin else b""
            found = _described(files, path)
            if before is not None and found != before:
                raise RequestFailure("it changed while it was read")
            stop = min(begin + len(data), max(begin, found[1]))
            return RangeAnswer(begin, stop, found[1], found[0], (data,) if data else ())

        yield self._call(read)

    def put(self, url: str, data: bytes) -> None:
        """Write a whole file."""

        def write() -> None:
            files, path = self._opened(url)
            files.pipe_file(path, data)

        self._call(write)

    def close(self) -> None:
        """Let go of all file systems; those within a call end when it returns."""
        self._is_closed = True
        self._mine = _OfThread()

    def _opened(self, url: str) -> tuple[Any, str]:
        """The file system of this thread for a URL, and the path in it."""
        kind: Any = cast("Any", fsspec).get_filesystem_class(self._scheme)
        said = _said_by_url(kind, url)
        path: str = kind._strip_protocol(url)  # noqa: SLF001 the name that fsspec documents
        host = repr(sorted(said.items()))
        files = self._mine.files.get(host)
        if files is None:
            self._require_taken(kind)
            files = kind(**{**self._options, **said}, skip_instance_cache=True)
            client = getattr(files, "client", None)  # of paramiko, whose connection would stay open
            if hasattr(client, "close"):
                weakref.finalize(files, _close, client).atexit = False
            if kind.cachable:
                self._mine.files[host] = files
        return files, path

    def _require_taken(self, kind: Any) -> None:
        """Refuse options that would be dropped without a word."""
        taken = inspect.signature(kind.__init__).parameters
        has_others = any(each.kind is each.VAR_KEYWORD for each in taken.values())
        if has_others and self._scheme not in _DROPS_OPTIONS:
            return  # it passes them on to its client
        unknown = [name for name in self._options if name not in taken]
        if unknown:
            there = (
                each.name for each in taken.values() if each.kind is each.POSITIONAL_OR_KEYWORD
            )
            raise ConfigError(
                f"storage_options of {self._scheme} have no {unknown[0]!r}; there are "
                f"{', '.join(name for name in there if name not in ('self', 'password'))}"
            )

    def _call(self, act: Callable[[], Any]) -> Any:
        """What fsspec gives; its errors may hold the URL, so they go no further."""
        if self._is_closed:
            raise closed_failure()
        failure: Exception
        try:
            given = self._tried(act)
        except (ConfigError, RequestFailure):
            raise
        except ImportError as error:
            failure = ConfigError(
                f"{self._scheme}:// shards need {error.name or 'a package'}, which is not "
                "installed; install what fsspec needs for this scheme"
            )
        except Exception as error:  # noqa: BLE001 each file system raises what its client does
            failure = _failure_of(error, has_answered=self._has_answered)
        else:
            self._has_answered = True
            return given
        raise failure

    def _tried(self, act: Callable[[], Any]) -> Any:
        """What a call returns; where it fails, its thread connects anew at the next one."""
        try:
            return act()
        except (FileNotFoundError, PermissionError, RequestFailure):
            raise
        except BaseException:
            self._mine.files.clear()
            raise


class _OfThread(threading.local):
    """The file systems of one thread, by host and user; their connections end with the thread."""

    def __init__(self) -> None:
        self.files: dict[str, Any] = {}


def _close(client: Any) -> None:
    with suppress(Exception):
        client.close()


def _said_by_url(kind: Any, url: str) -> dict[str, Any]:
    """The arguments of a file system that a URL has in front of its path."""
    said: dict[str, Any] = dict(kind._get_kwargs_from_urls(url))  # noqa: SLF001 as fsspec documents
    said.pop("url_fragment", None)  # it is in the path as well
    return {name: unquote(said[name]) if name in _USERS else said[name] for name in said}


def _failure_of(error: Exception, *, has_answered: bool) -> RequestFailure:
    """Why a call failed; a server that has answered before may answer again."""
    known = [_FAILURES[of.__name__] for of in type(error).__mro__ if of.__name__ in _FAILURES]
    what, kind = known[0] if known else ("", "again" if has_answered else "final")
    remedy = "check storage_options" if kind == "final" else ""
    return RequestFailure(what or f"fsspec raised {type(error).__name__}", kind, remedy=remedy)


def _described(files: Any, path: str) -> tuple[str, int]:
    """Version and size of a file by what its file system says."""
    files.invalidate_cache()  # of all listings: some file systems look in that of the folder
    facts = cast("dict[str, Any]", files.info(path))
    etag = next((str(facts[name]) for name in _ETAGS if facts.get(name)), None)
    changed = next((facts[name] for name in _TIMES if facts.get(name)), None)
    size = int(facts.get("size") or 0)
    return version_of(etag, changed, size), size
