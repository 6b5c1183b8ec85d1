"""The small files beside shards, such as indexes and counts: their names, and how they are read.

Files that are absent, too large or unreadable are passed over, because the shards themselves can
answer. A fifo, a socket, a device or a folder of such a name is an error: none comes there by
accident, and reading it could take for ever.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeGuard, cast

from lightning_shards.errors import UrlError
from lightning_shards.shards.regular_files import open_regular, read_regular

SIZES: Final = "sizes.json"
WIDS: Final = "wids.json"

MAX_INDEX_BYTES: Final = 256 << 20
"""Largest file that is read: a wids JSON of a million shards has about 150 MB."""

_MAX_SAMPLES = 1 << 40  # of one shard; a larger number is a damaged file

_NAMES = re.compile(
    r"wids\.json|sizes\.json|classes\.json|_info\.json|.*_stats\.json|__len__"
    r"|.*\.members|.*\.idx|repair\.json|README\.md"
)
"""Names of files that this package and others write beside shards."""

_log = logging.getLogger(__name__)


def require_shards_alone(path: str, matches: Sequence[str]) -> None:
    """Refuse a path or a pattern that matches a file which lies beside shards.

    Raises:
        UrlError: It matches one.
    """
    for match in matches:
        name = os.path.basename(match)  # noqa: PTH119 quick: a pattern may match 10^6 files
        if _NAMES.fullmatch(name):
            shards = os.path.join(os.path.dirname(path), "*.tar")  # noqa: PTH118, PTH120 a ./ stays
            found = f"{path} is" if match == path else f"the pattern {path} also matches {name},"
            raise UrlError(
                f"{found} a file that lies beside shards, and not a shard; write '{shards}'"
            )


def read_beside(path: Path) -> bytes | None:
    """The contents of a file; None, with a warning, if it cannot be read or is too large.

    Raises:
        FileAccessError: It is a fifo, a socket, a device or a folder.
    """
    return _passing_over(path, lambda: read_regular(path, MAX_INDEX_BYTES))


def read_start(path: Path, num_bytes: int) -> bytes | None:
    """The first bytes of a file, however large it is; None, with a warning, if it cannot be read.

    Raises:
        FileAccessError: It is a fifo, a socket, a device or a folder.
    """

    def read() -> bytes:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(num_bytes)

    return _passing_over(path, read)


def _passing_over(path: Path, read: Callable[[], bytes]) -> bytes | None:
    require_regular(path)
    if not os.path.exists(path):  # noqa: PTH110 never raises
        return None
    try:
        return read()
    except OSError as error:  # its message names the path
        _log.warning("passed over: %s", error)
        return None


def json_files(folder: Path) -> list[Path]:
    """The files of a folder that may be indexes of its shards, by name.

    A folder with the name of a JSON file is left out, unless the name is one of an index: reading
    it is then an error.
    """
    return [
        path
        for path in sorted(folder.glob("*.json"))
        if path.name in (SIZES, WIDS) or not os.path.isdir(path)  # noqa: PTH112 never raises
    ]


def read_json(path: Path, *, containing: bytes = b"") -> object:
    """The content of a JSON file; None if it is absent or unreadable or lacks these bytes.

    Raises:
        FileAccessError: It is a fifo, a socket, a device or a folder.
    """
    data = read_beside(path)
    if data is None or containing not in data:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        _log.warning("%s is passed over: it is no JSON: %s", path, error)
        return None


def json_object(value: object) -> dict[str, Any]:
    """The value itself if it is a JSON object, otherwise an empty object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value from a JSON file can be a number of samples."""
    return is_number(value) and 0 <= value < _MAX_SAMPLES


def is_number(value: object) -> TypeGuard[int]:
    """Whether a value from a JSON file is a whole number (`true` and `false` are not)."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_regular(path: Path) -> None:
    """Refuse a path at which there is something other than a regular file.

    Raises:
        FileAccessError: It is a fifo, a socket, a device or a folder.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 never raise
        os.close(open_regular(path))  # its error says what is there
