"""The contents of the small files beside shards: whole, or none where the shards can answer.

What is absent, too large or unreadable is passed over. A fifo, a socket, a device or a folder of
such a name is an error: nobody puts one there by accident, and to read it could take for ever.
"""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeGuard, cast

from lightning_shards.shards.regular_files import open_regular, read_regular

SIZES: Final = "sizes.json"
WIDS: Final = "wids.json"

MAX_INDEX_BYTES: Final = 256 << 20
"""Of one file: a wids JSON of a million shards has about 150 MB."""

_MAX_SAMPLES = 1 << 40  # of one shard; a larger number is a damaged file

_log = logging.getLogger(__name__)


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
    except OSError as error:  # it names the path
        _log.warning("passed over: %s", error)
        return None


def json_files(folder: Path) -> list[Path]:
    """The files of a folder that may be indexes of its shards, by name.

    A folder in it that is named like a JSON file is none of them, unless by a name of an index.
    """
    return [
        path
        for path in sorted(folder.glob("*.json"))
        if path.name in (SIZES, WIDS) or not os.path.isdir(path)  # noqa: PTH112 never raises
    ]


def read_json(path: Path, *, containing: bytes = b"") -> object:
    """The content of a JSON file; None if there is none, or it cannot be read or lacks these bytes.

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
    """A JSON object as it is; an empty one in place of any other value."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value from a JSON file can be a number of samples."""
    return is_number(value) and 0 <= value < _MAX_SAMPLES


def is_number(value: object) -> TypeGuard[int]:
    """Whether a value from a JSON file is a whole number, and not `true` or `false`."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_regular(path: Path) -> None:
    """Refuse what is at this path if it is there and no regular file.

    Raises:
        FileAccessError: It is a fifo, a socket, a device or a folder.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 never raise
        os.close(open_regular(path))  # which says what it is
