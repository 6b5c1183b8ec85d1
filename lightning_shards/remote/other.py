"""Shards of any further scheme that fsspec knows: `sftp://`, `ftp://`, `hdfs://` and others.

Few of its file systems know time limits. A worker whose call hangs is ended by its time limit.
"""

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast
from urllib.parse import unquote

import fsspec

from lightning_shards.errors import ConfigError
from lightning_shards.remote.backend import (
    RangeAnswer,
    RangeClient,
    RequestFailure,
    TransportSettings,
    version_of,
)

_ETAGS: Final = ("ETag", "etag", "e_tag", "md5Hash")
_TIMES: Final = ("LastModified", "last_modified", "mtime", "modified", "modify", "created")

_T = TypeVar("_T")


class OtherClient(RangeClient):
    """Reads by file systems of fsspec: each thread has its own, until a call on it fails.

    fsspec would keep a file system for ever, also with a connection that broke.

    Args:
        scheme: What fsspec knows it by.
        settings: Options are the arguments of that file system, such as `host` and `port`; what a
            URL says goes before them.
    """

    def __init__(self, scheme: str, settings: TransportSettings) -> None:
        self._scheme, self._options = scheme, dict(settings.options.get(scheme, {}))
        self._of_thread = threading.local()  # file systems by host and user
        self._has_answered = False

    @contextmanager
    def get(self, url: str, begin: int, end: int) -> Generator[RangeAnswer, None, None]:
        """Read a range, and ask before and after it what the object is."""

        def read(files: Any, path: str) -> RangeAnswer:
            version, size = found = _described(files, path)
            stop = max(begin, min(end, size))
            data: bytes = files.cat_file(path, begin, stop) if stop > begin else b""
            if _described(files, path) != found:
                raise RequestFailure("it changed while it was read")
            return RangeAnswer(begin, stop, size, version, (data,))

        yield self._called(url, read)

    def put(self, url: str, data: bytes) -> None:
        """Write a whole file."""
        self._called(url, lambda files, path: files.pipe_file(path, data))

    def _called(self, url: str, act: Callable[[Any, str], _T]) -> _T:
        """What fsspec gives; its errors may hold the URL, so they go no further."""
        try:
            given = act(*self._opened(url))
        except RequestFailure:
            raise
        except ImportError as error:
            failure: Exception = ConfigError(
                f"{self._scheme}:// shards need {error.name or 'a package'}, which is not "
                "installed; install what fsspec needs for this scheme"
            )
        except FileNotFoundError:
            failure = RequestFailure("there is no such file", "absent")
        except PermissionError:
            failure = RequestFailure("this user may not read it", "denied")
        except Exception as error:  # noqa: BLE001 each file system raises what its client does
            vars(self._of_thread).clear()
            may_pass = self._has_answered or isinstance(error, (OSError, EOFError))
            what = f"fsspec raised {type(error).__name__}"
            failure = RequestFailure(what, "again" if may_pass else "final")
        else:
            self._has_answered = True
            return given
        raise failure

    def _opened(self, url: str) -> tuple[Any, str]:
        """The file system of this thread for a URL, and the path in it."""
        kind: Any = cast("Any", fsspec).get_filesystem_class(self._scheme)
        said: Mapping[str, Any] = kind._get_kwargs_from_urls(url)  # noqa: SLF001 fsspec documents it
        said = {name: unquote(it) if isinstance(it, str) else it for name, it in said.items()}
        said.pop("url_fragment", None)  # it is in the path as well
        path: str = kind._strip_protocol(url)  # noqa: SLF001 the name that fsspec documents
        opened = vars(self._of_thread)
        host = repr(sorted(said.items()))
        if host not in opened:
            opened[host] = kind(**{**self._options, **said}, skip_instance_cache=True)
        return opened[host], path


def _described(files: Any, path: str) -> tuple[str, int]:
    """Version and size of a file by what its file system says."""
    files.invalidate_cache()  # of all listings: some file systems look in that of the folder
    facts = cast("dict[str, Any]", files.info(path))
    etag = next((str(facts[name]) for name in _ETAGS if facts.get(name)), None)
    changed = next((facts[name] for name in _TIMES if facts.get(name)), None)
    return version_of(etag, changed), int(facts.get("size") or 0)
