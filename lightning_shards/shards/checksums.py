"""CRC-32 by the fastest library that is installed; every library gives the same number."""

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Final, TypeAlias

_Crc32: TypeAlias = Callable[..., int]


def _fastest() -> _Crc32:
    try:
        fast: _Crc32 = import_module("zlib_ng.zlib_ng").crc32  # extra `checksum`
    except ImportError:
        return zlib.crc32
    return fast


crc32: Final[_Crc32] = _fastest()
