"""Shards of any further scheme that fsspec knows: `sftp://`, `ftp://`, `hdfs://` and others."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import fsspec

from lightning_shards.errors import ConfigError
from lightning_shards.shards.remote.backend import (
    RangeAnswer,
    RequestBackend,
    RequestFailure,
    version_of,
)
from lightning_shards.shards.remote.options import require_no_secret

_ETAGS: Final = ("ETag", "etag", "e_tag", "md5Hash", "uid")
_TIMES: Final = ("LastModified", "last_modified", "mtime", "modified", "modify", "created")


class OtherBackend(RequestBackend):
    """Reads by a file system of fsspec, which keeps one for each process and thread.

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

    @contextmanager
    def get(
        self, url: str, begin: int, end: int, version: str | None
    ) -> Generator[RangeAnswer, None, None]:
        """Read a range, and ask afterwards what the object is: it may be replaced meanwhile."""

        def read() -> RangeAnswer:
            files, path = self._opened(url)
            before = None if version is not None else _described(files, path)
            size = before[1] if before else end
            data = b"" if begin >= size else cast("bytes", files.cat_file(path, begin, end))
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

    def _opened(self, url: str) -> tuple[Any, str]:
        return cast("tuple[Any, str]", cast("Any", fsspec).core.url_to_fs(url, **self._options))

    def _call(self, act: Callable[[], Any]) -> Any:
        """What fsspec gives; its errors may hold the URL, so they go no further."""
        failure: Exception
        try:
            return act()
        except RequestFailure:
            raise
        except FileNotFoundError:
            failure = RequestFailure("there is no such file", "absent")
        except PermissionError:
            failure = RequestFailure("this user may not read it", "denied")
        except ImportError as error:
            failure = ConfigError(
                f"{self._scheme}:// shards need {error.name or 'a package'}, which is not "
                "installed; install what fsspec needs for this scheme"
            )
        except (OSError, EOFError) as error:
            failure = RequestFailure(f"fsspec raised {type(error).__name__}")
        except Exception as error:  # noqa: BLE001 each file system raises what its client does
            failure = RequestFailure(
                f"fsspec raised {type(error).__name__}", "final", remedy="check storage_options"
            )
        raise failure


def _described(files: Any, path: str) -> tuple[str, int]:
    """Version and size of a file by what its file system says."""
    files.invalidate_cache(path)  # listings may be kept
    facts = cast("dict[str, Any]", files.info(path))
    etag = next((str(facts[name]) for name in _ETAGS if facts.get(name)), None)
    changed = next((facts[name] for name in _TIMES if facts.get(name)), None)
    size = int(facts.get("size") or 0)
    return version_of(etag, changed, size), size
