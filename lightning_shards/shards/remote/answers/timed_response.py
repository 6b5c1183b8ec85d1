"""Answers of http.client that come in time: a timeout of a socket ends no answer that drips.

Such a timeout begins anew with each byte. So the file that an answer is read from looks at a
deadline before it waits for the next bytes.
"""

import io
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPResponse, parse_headers
from typing import Any, Final, cast

from urllib3.response import BaseHTTPResponse

_AT_ONCE_S: Final = 1.0
"""Seconds for a page that nobody wants; a new connection takes less."""


class TimedResponse(HTTPResponse):
    """An answer whose status and headers must have come in time.

    Args:
        sock: The socket.
        now: A clock, in seconds.
        limit_s: Seconds for status and headers, of a proxy's, too.
        settings: As http.client gives them.

    Attributes:
        sock: The socket, which is the connection's or was.
    """

    def __init__(
        self, sock: Any, *, now: Callable[[], float], limit_s: float, **settings: Any
    ) -> None:
        super().__init__(sock, **settings)
        self.sock, self._limit_s = sock, limit_s
        self._file = _TimedFile(cast("Any", self.fp).detach(), now)
        self._file.allow(limit_s)
        self.fp = io.BufferedReader(self._file)

    def begin(self) -> None:
        """Read status and headers.

        Raises:
            TimeoutError: They did not come in time.
        """
        super().begin()
        self._file.allow(None)

    def _read_status(self) -> tuple[str, int, str]:
        """Pass over all answers that only announce one; http.client knows the first kind alone."""
        while True:
            version, status, reason = cast("Any", super())._read_status()  # noqa: SLF001 the one seam
            if not HTTPStatus.SWITCHING_PROTOCOLS < status < HTTPStatus.OK:
                return version, status, reason
            parse_headers(cast("Any", self.fp))

    @contextmanager
    def in_time(self, limit_s: float | None = None) -> Generator[None, None, None]:
        """Read what of the body must come in so many seconds; `limit_s` of the answer if None.

        Raises:
            TimeoutError: It did not.
        """
        self._file.allow(self._limit_s if limit_s is None else limit_s)
        try:
            yield
        finally:
            self._file.allow(None)

    @contextmanager
    def shortly(self) -> Generator[None, None, None]:
        """Read so much of the body as comes at once; on TimeoutError close the connection.

        If there is none, the connection's next request sets its timeout anew.
        """
        limit_s = min(_AT_ONCE_S, self._limit_s)
        self.sock.settimeout(limit_s)
        with self.in_time(limit_s):
            yield


def timed_of(response: BaseHTTPResponse) -> TimedResponse | None:
    """What an answer of urllib3 is read from; None if it is closed, or of no connection of ours."""
    raw = getattr(response, "_original_response", None)
    return raw if isinstance(raw, TimedResponse) else None


class _TimedFile(io.RawIOBase):
    """The bytes of a socket, as far as they come before a deadline."""

    def __init__(self, file: io.RawIOBase, now: Callable[[], float]) -> None:
        self._file, self._now = file, now
        self._deadline: float | None = None

    def allow(self, limit_s: float | None) -> None:
        self._deadline = None if limit_s is None else self._now() + limit_s

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def readinto(self, buffer: Any, /) -> int | None:
        if self._deadline is not None and self._now() > self._deadline:
            raise TimeoutError("the server is too slow")
        return cast("Any", self._file).readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
