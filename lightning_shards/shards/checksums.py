"""CRC-32 by the fastest library that is installed; every library gives the same number."""

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

try:
    _library: Any = import_module("zlib_ng.zlib_ng")  # extra `checksum`
except ImportError:
    _library = zlib

crc32: Final[Callable[..., int]] = _library.crc32
