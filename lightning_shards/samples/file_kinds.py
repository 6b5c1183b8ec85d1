"""Kinds of files, by their first bytes: for messages and surveys, and never for decoding."""

from typing import Final

_KINDS: Final = (
    (b"\xff\xd8\xff", "JPEG", True),
    (b"\x89PNG", "PNG", True),
    (b"GIF8", "GIF", True),
    (b"II*\0", "TIFF", False),
    (b"MM\0*", "TIFF", False),
    (b"\xff\x0a", "JPEG XL", True),
    (b"\0\0\0\x0cJXL ", "JPEG XL", True),
    (b"\0\0\0\x0cjP  ", "JPEG 2000", True),
    (b"\xff\x4f\xff\x51", "JPEG 2000", True),
    (b"8BPS", "Photoshop", False),
    (b"\x1f\x8b", "gzip", True),
    (b"\x28\xb5\x2f\xfd", "zstandard", True),
    (b"BZh", "bzip2", True),
    (b"\xfd7zXZ", "xz", True),
    (b"PK\x03\x04", "zip or npz", True),
    (b"\x93NUMPY", "npy", False),
    (b"fLaC", "FLAC", True),
    (b"OggS", "Ogg", True),
    (b"ID3", "MP3", True),
    (b"\x80\x04", "pickle", False),
    (b"\x80\x05", "pickle", False),
)
_RIFF, _RIFF_KINDS = b"RIFF", {b"WEBP": ("WebP", True), b"AVI ": ("AVI", True)}
_MP4: Final = b"ftyp"
_BRANDS: Final = {b"avif": "AVIF", b"avis": "AVIF"} | dict.fromkeys(
    (b"heic", b"heix", b"heim", b"hevc", b"mif1", b"msf1"), "HEIC"
)
_TEXTS: Final = (
    ((b"<!doctype html", b"<html", b"<head", b"<body"), "HTML"),
    ((b"<?xml", b"<svg", b"<error"), "XML or SVG"),
    ((b"%pdf",), "PDF"),
    ((b"%!ps",), "PostScript"),
    ((b"{", b"["), "JSON"),
)
_DECODED: Final = ("JPEG", "PNG", "GIF", "WebP")
_REMEDIES: Final = {
    "HTML": "it is the answer of a server that had no image; fetch the image again",
    "XML or SVG": "it is the answer of a server, or a drawing; fetch the image, or draw it as PNG",
    "JSON": "it is the answer of a server, or a text; fetch the image, or decode it as 'json'",
    "gzip": "let the member's suffix end in .gz, so that it is unpacked, and decode the field; a "
    "transform that takes bytes gets them packed",
    "npy": "decode the field as 'npy'",
}
_FOREIGN: Final = "write it as JPEG, PNG or WebP, or decode the field by a function of your own"
_SHOWN: Final = 24
_TEXT_BYTES: Final = 1 << 16


def file_kind(data: bytes) -> tuple[str, bool]:
    """The kind of a file, and whether that kind is compressed; `text` or `bytes` if it is unknown.

    >>> file_kind(b"GIF89a..."), file_kind(b"a cat")
    (('GIF', True), ('text', False))
    """
    for magic, kind, is_compressed in _KINDS:
        if data.startswith(magic):
            return kind, is_compressed
    if data.startswith(_RIFF):
        return _RIFF_KINDS.get(data[8:12], ("WAV", False))
    if data[4:8] == _MP4:
        return _BRANDS.get(data[8:12], "MP4"), True
    try:
        # The end is left out, because a letter may be cut in two there.
        data[: _TEXT_BYTES - 4].decode()
    except UnicodeDecodeError:
        return "bytes", False
    return "text", False


def about_no_image(data: bytes) -> str:
    """Says of bytes that no image library knows what they are, and what helps.

    >>> about_no_image(b"<!DOCTYPE html><html>")
    'no image but HTML: it is the answer of a server that had no image; fetch the image again'
    >>> about_no_image(b"")
    'no image but no bytes; fetch the image again, or leave its sample out'
    """
    if not data.strip(b"\0"):
        what = "zeros alone, as of a file that was not written to its end" if data else "no bytes"
        return f"no image but {what}; fetch the image again, or leave its sample out"
    kind, begin = file_kind(data)[0], data[:_TEXT_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    kind = next((name for starts, name in _TEXTS if begin.startswith(starts)), kind)
    if kind in ("text", "bytes"):
        return (
            f"no image of a known format, it begins with {data[:_SHOWN]}; fetch the image again, "
            "leave its sample out, or name another decoder in `decode`"
        )
    if kind == "TIFF":  # those of 16-bit floats, for instance, are valid
        return (
            "a TIFF that is damaged, or of a kind that Pillow does not read; fetch the image "
            "again, leave its sample out, or decode the field as 'raw' or by a function of your own"
        )
    if kind in _DECODED:
        return (
            f"a {kind} that is damaged from its beginning on; fetch the image again, or leave its "
            "sample out"
        )
    return f"no image but {kind}: {_REMEDIES.get(kind, _FOREIGN)}"
