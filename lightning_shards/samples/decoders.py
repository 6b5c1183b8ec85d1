"""The registry of decoders: by name, and by the suffix of a member."""

import io
import json
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeAlias

from lightning_shards.errors import ConfigError
from lightning_shards.samples.arrays import (
    JSON_DECODERS,
    NUMBER_DECODERS,
    decode_npy,
    decode_npz,
    decode_safetensors,
)
from lightning_shards.samples.tensors import load_torch

Decoder: TypeAlias = Callable[[bytes], Any]
"""Bytes of a member to a value, whose arrays are writable; raises ValueError or OSError for bytes
that it cannot read."""


@dataclass(frozen=True)
class OwnDecoder:
    """A decoder of the user's own.

    Attributes:
        name: Its name in errors.
        function: Bytes of a member to a value; any error that it raises is one of the sample.
    """

    name: str
    function: Decoder = field(hash=False)


DecoderChoice: TypeAlias = str | OwnDecoder
"""The name of one of `DECODERS` (or `CLASS`), or a decoder of the user's own."""


class Decoding(NamedTuple):
    """The way from the bytes of a member to its value.

    Attributes:
        decoder: What decodes them.
        is_gzipped: Whether they are unpacked before, as those of `json.gz`.
    """

    decoder: DecoderChoice
    is_gzipped: bool = False

    @property
    def name(self) -> str:
        """Its name in errors."""
        return self.decoder.name if isinstance(self.decoder, OwnDecoder) else self.decoder

    def problem(self, error: Exception) -> str:
        """The text of an error that it raised, with its kind if the code is the user's.

        An error without a text is told by its kind.
        """
        kind = type(error).__name__
        if isinstance(self.decoder, OwnDecoder):
            return f"{kind}: {error}"
        return str(error) or kind

    def remedy(self, field: str, data: bytes) -> str:
        """The settings that would read a member which is no whole number, or general advice.

        >>> Decoding("int").remedy("label", b"0.5")
        'for such numbers set decode: {label: json}'
        """
        if isinstance(self.decoder, OwnDecoder):
            return "repair the shard, or that function"
        is_int = self == Decoding("int")
        if is_int and _is_fraction(data):
            return f"for such numbers set decode: {{{field}: json}}"
        if is_int and any(map(str.isalpha, data.decode(errors="ignore").replace("_", "a"))):
            return (
                f"for texts set decode: {{{field}: text}}; for names of classes set decode: "
                f"{{{field}: class}} and classes: {{{field}: [...]}}, or leave classes out where a "
                "classes.json is beside the shards"
            )
        return "repair the shard, or name another decoder in `decode`"


def _is_fraction(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), float)
    except ValueError:  # a UnicodeDecodeError, too
        return False


def _decode_int(data: bytes) -> int:
    number = int(data)
    if b"_" in data:  # Python reads 1_23 as 123
        raise ValueError(f"{data[:40]} has an underscore, which no number has")
    if not -(2**63) <= number < 2**63:
        raise ValueError("it fits no int64; decode it as 'text'")
    return number


def _decode_pth(data: bytes) -> Any:
    return load_torch().load(io.BytesIO(data), weights_only=True, map_location="cpu")


def _of_images(name: str, **settings: Any) -> Decoder:
    """A decoder of `samples.images`, which is imported with the first image."""

    def decode(data: bytes) -> Any:
        return getattr(import_module("lightning_shards.samples.images"), name)(data, **settings)

    return decode


RAW = "raw"
"""The decoder that leaves the bytes as they are."""

CLASS = "class"
"""The decoder of names of classes; its function is in the field, because each has its own names."""

LABELS = "labels"
"""The decoder of maps of classes, ids and depths, which have the type of their file."""

DECODERS: dict[str, Decoder] = {
    RAW: bytes,
    "text": bytes.decode,
    "int": _decode_int,
    "json": json.loads,
    **JSON_DECODERS,
    "npy": decode_npy,
    "npz": decode_npz,
    "safetensors": decode_safetensors,
    **NUMBER_DECODERS,
    "rgb": _of_images("decode_rgb"),
    "gray": _of_images("decode_gray"),
    "pil": _of_images("decode_pil"),
    "rgb_oriented": _of_images("decode_rgb", is_oriented=True),
    "gray_oriented": _of_images("decode_gray", is_oriented=True),
    "pil_oriented": _of_images("decode_pil", is_oriented=True),
    LABELS: _of_images("decode_labels"),
    "pickle": pickle.loads,  # refused unless it is named in allow_unsafe
    "pth": _decode_pth,  # refused unless it is named in allow_unsafe
}

PIXEL_DECODERS = frozenset({"rgb", "gray", "rgb_oriented", "gray_oriented", LABELS})
IMAGE_DECODERS = PIXEL_DECODERS | {"pil", "pil_oriented"}
OBJECT_DECODERS: frozenset[DecoderChoice] = frozenset({"json", *JSON_DECODERS})
TORCH_DECODERS = frozenset({"safetensors", "pth"})
UNSAFE_DECODERS = frozenset({"pickle", "pth"})

_SUFFIX_DECODERS = {
    "int": "cls cls2 class count index inx id",
    "text": "txt text transcript",
    "json": "json jsn",
    "npy": "npy",
    "npz": "npz",
    "safetensors": "safetensors",
    "rgb": "jpg jpeg png webp gif bmp tif tiff ppm pgm pnm",
    "pickle": "pkl pickle pyd",
    "pth": "pth",
}

_GZ = ".gz"
_BY_SUFFIX = {suffix: name for name, text in _SUFFIX_DECODERS.items() for suffix in text.split()}

SuffixDecoders: TypeAlias = tuple[tuple[str, DecoderChoice], ...]
"""Decoders that a configuration gives to suffixes, as in ``(".wav", OwnDecoder(...))``."""


def decoding_of(
    suffix: str, chosen: DecoderChoice | None = None, by_suffix: SuffixDecoders = ()
) -> Decoding | None:
    """The way in which members of a suffix are decoded; None if nothing is known of the suffix.

    Members `.gz` are unpacked first, unless they are wanted as `raw`, or by a suffix with its .gz.

    Args:
        suffix: Of the member, without its first dot.
        chosen: The decoder of its field, if the field has one.
        by_suffix: Decoders of suffixes, which go before the default ones; the longest one counts.
    """
    suffix = suffix.lower()
    is_gzipped = f".{suffix}".endswith(_GZ)
    unpacked = f".{suffix}".removesuffix(_GZ)
    if chosen is not None:
        return Decoding(chosen, is_gzipped and chosen != RAW)
    ends = [(end, own, False) for end, own in by_suffix if f".{suffix}".endswith(end)]
    ends += [(end, own, is_gzipped) for end, own in by_suffix if unpacked.endswith(end)]
    if ends:
        _, own, is_unpacked = max(ends, key=lambda choice: len(choice[0]))
        return Decoding(own, is_unpacked and own != RAW)
    name = _BY_SUFFIX.get(unpacked.rsplit(".", 1)[-1])
    return None if name is None else Decoding(name, is_gzipped)


def ends_in(suffix: str, end: str) -> bool:
    """Whether a decoder that is given to an end, as `.wav`, is one of members of a suffix."""
    return decoding_of(suffix, by_suffix=((end, RAW),)) == Decoding(RAW)


def require_libraries(decoders: Iterable[DecoderChoice]) -> None:
    """Check that the libraries of these decoders are installed.

    Raises:
        ConfigError: One is not.
    """
    for name in decoders:
        if name in IMAGE_DECODERS:
            import_module("lightning_shards.samples.images").require_backend("pillow")
        if name == "safetensors" and find_spec("safetensors") is None:
            raise ConfigError(
                "decoding 'safetensors' needs safetensors, which is not installed: "
                "pip install 'lightning-shards[tensors]', or decode the field as 'raw'"
            )


def own_decoder(key: str, value: object) -> DecoderChoice:
    """The decoder that a configuration gives to a field or a suffix: a name, or a callable.

    Raises:
        ConfigError: It is neither, or it wants more than bytes.
    """
    if isinstance(value, str):
        return value
    if not callable(value):
        raise ConfigError(
            f"the decoder of {key!r} must be the name of one, a callable from bytes to a value or "
            f"its import path, got {value!r}"
        )
    kind: Any = value if hasattr(value, "__qualname__") else type(value)
    return OwnDecoder(".".join(filter(None, (kind.__module__, kind.__qualname__))), value)
