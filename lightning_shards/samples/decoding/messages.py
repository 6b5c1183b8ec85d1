"""Decoders of values in the binary formats CBOR and MessagePack, by their libraries.

No other module knows these libraries. Both bound how deep values are nested, and cbor2 takes memory
as values come. CBOR in which a value stands for one that came before is refused, because 150 bytes
can speak of lists in lists with millions of numbers. msgpack takes some memory for the lists that
headers speak of before their values come: a member of 68 kB that speaks of lists in lists takes
32 MB at its peak, one of 1 MB takes 41 MB.
"""

from functools import cache
from importlib import import_module
from io import BytesIO
from typing import Any

_SHARED_VALUE = 29
"""The tag of CBOR by which a value stands for one that came before."""


def decode_cbor(data: bytes) -> Any:
    """The value in a .cbor file."""
    file = BytesIO(data)
    value = _library("cbor2").CBORDecoder(file, semantic_decoders=_REFUSED).decode()
    if file.tell() != len(data):
        raise ValueError(f"its value ends at byte {file.tell()}, and more follows")
    return value


def decode_msgpack(data: bytes) -> Any:
    """The value in a .msgpack file; keys of maps are texts or bytes."""
    return _library("msgpack").unpackb(data)


def _refuse_shared(*_: object) -> Any:
    raise _library("cbor2").CBORDecodeError(
        "one value stands in it several times; write it without value sharing"
    )


_REFUSED = {_SHARED_VALUE: _refuse_shared}


@cache
def _library(name: str) -> Any:
    return import_module(name)  # of an extra
