"""Shards of any further scheme that fsspec knows: `sftp://`, `ftp://`, `hdfs://` and others.

Few of its file systems know time limits, so each call is made in a thread that can be given up.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import fsspec

from lightning_shards.errors import ConfigError
from lightning_shards.shards.remote.answers.bounded_calls import Alive, BoundedCalls
from lightning_shards.shards.remote.backend import (
    RangeAnswer,
    RequestBackend,
    RequestFailure,
    version_of,
)
from lightning_shards.shards.remote.options import require_no_secret
from lightning_shards.shards.remote.retries import RetryPolicy

_READ_AT_ONCE: Final = 1 << 20
"""Bytes that must come within the read timeout; each further call may open the file anew."""

_ETAGS: Final = ("ETag", "etag", "e_tag", "md5Hash")
_TIMES: Final = ("LastModified", "last_modified", "mtime", "modified", "modify", "created")


class OtherBackend(RequestBackend):
    """Reads by a file system of fsspec, which keeps one for each process and thread.

    Args:
        scheme: What fsspec knows it by.
        options: The arguments of that file system, such as `host` and `port`; what a URL says goes
            before them.
        policy: Its time limits.

    Raises:
        ConfigError: An option looks like a secret.
    """

    def __init__(self, scheme: str, options: Mapping[str, Any], policy: RetryPolicy) -> None:
        require_no_secret(scheme, options)
        self._scheme = scheme
        self._options = dict(options)
        self._policy = policy
        self._calls = BoundedCalls()

    @contextmanager
    def get(
        self, url: str, begin: int, end: int, version: str | None
    ) -> Generator[RangeAnswer, None, None]:
        """Read a range, and ask afterwards what the object is: it may be replaced meanwhile."""

        def read(alive: Alive) -> RangeAnswer:
            files, path = self._opened(url)
            alive()
            is_known = version is not None and end - begin <= _READ_AT_ONCE
            before = None if is_known else _described(files, path)
            size = min(end, before[1]) if before else end
            data = _read(files, path, range(begin, size), alive)
            found = _described(files, path)
            if before is not None and found != before:
                raise RequestFailure("it changed while it was read")
            stop = min(begin + len(data), max(begin, found[1]))
            return RangeAnswer(begin, stop, found[1], found[0], (data,) if data else ())

        yield self._call(read, self._policy.stall_s)

    def put(self, url: str, data: bytes) -> None:
        """Write a whole file."""

        def write(alive: Alive) -> None:
            files, path = self._opened(url)
            alive()
            files.pipe_file(path, data)

        self._call(write, self._policy.longest_s(len(data)))

    def close(self) -> None:
        """End the threads that wait for calls; those within a call end when it returns."""
        self._calls.close()

    def _opened(self, url: str) -> tuple[Any, str]:
        return cast("tuple[Any, str]", cast("Any", fsspec).core.url_to_fs(url, **self._options))

    def _call(self, act: Callable[[Alive], Any], limit_s: float) -> Any:
        """What fsspec gives in time; its errors may hold the URL, so they go no further."""
        failure: Exception
        try:
            return self._calls.call(act, limit_s)
        except RequestFailure:
            raise
        except TimeoutError:
            failure = RequestFailure("the server stalled")
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


def _read(files: Any, path: str, wanted: range, alive: Alive) -> bytes:
    """The bytes of a range, or those in front of the file's end."""
    parts: list[bytes] = []
    for begin in wanted[::_READ_AT_ONCE]:
        alive()
        end = min(begin + _READ_AT_ONCE, wanted.stop)
        parts.append(cast("bytes", files.cat_file(path, begin, end)))
        if len(parts[-1]) < end - begin:
            break
    alive()
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _described(files: Any, path: str) -> tuple[str, int]:
    """Version and size of a file by what its file system says."""
    files.invalidate_cache()  # of all listings: some file systems look in that of the folder
    facts = cast("dict[str, Any]", files.info(path))
    etag = next((str(facts[name]) for name in _ETAGS if facts.get(name)), None)
    changed = next((facts[name] for name in _TIMES if facts.get(name)), None)
    size = int(facts.get("size") or 0)
    return version_of(etag, changed, size), size
