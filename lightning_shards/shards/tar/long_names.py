"""Checks of long names: extended headers have no checksum, so the header that follows is compared.

That header has a checksum, and writers repeat the name in it as far as it fits. The forms differ:

| writer | name field of the header that follows |
|---|---|
| GNU tar, busybox, tarfile (GNU), Go (GNU), commons-compress | the first 100 bytes, or 99 |
| tarfile (PAX) | the first 100 letters, `?` for each that is not ASCII |
| Go (PAX) | the first 100 ASCII letters, the others left out |
| tar-rs | the first 100 bytes, without `./` and double slashes |
| bsdtar (PAX) | the first folders, and the beginning of the last part, with the prefix field |
| tar-stream | `PaxHeader` |

A name that fits none of these forms is damaged if the field was clearly cut from it: the field is
full, or it differs from one of the forms in a single bit.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

_FULL: Final = 97
"""A field of this many bytes was cut: writers leave space for an end, or end before a letter."""

_ANY: Final = -1
"""Stands for a letter that is not ASCII, which a writer may replace by any other."""

_ASCII: Final = 128


def compared_bytes(name: bytes, repeated: bytes) -> int | None:
    """How many bytes of a long name its header repeats; 0 if that has a name of another kind.

    Args:
        name: The name in the extended header.
        repeated: The name in the header that follows, with its prefix.

    Returns:
        None if the two names contradict each other, so that the long name is damaged.
    """
    if repeated and name.startswith(repeated):
        return len(repeated)
    if not repeated or (len(name) < _FULL and name.isascii()):
        return 0  # no writer puts such a name into an extended header
    forms = [name, _without_empty_parts(name), name.decode("ascii", "ignore").encode()]
    if any(form.startswith(repeated) for form in forms) or _is_shortened(name, repeated):
        return len(repeated)
    text = name.decode("utf-8", "surrogateescape")
    letters = [_byte_of(letter) for letter in text]
    if _differences(letters, repeated) == []:
        return sum(0 <= letter < _ASCII for letter in letters[: len(repeated)])
    is_foreign = not text.isascii() and text.isprintable()  # writers spell such names differently
    is_cut = len(repeated) >= _FULL and not is_foreign
    is_near = any(_is_one_bit(_differences(form, repeated)) for form in (*forms, letters))
    return None if is_cut or is_near else 0


def gnu_name(body: bytes, block: int) -> bytes:
    """The name in the data of a GNU long name; empty if a block of so many bytes was lost from it.

    A zero ends the name. Where it ends with a block, more zeros than one stand for another block.
    """
    name = body.rstrip(b"\0")
    is_cut = len(name) % block == 0 and len(name) + 1 < len(body)
    return b"" if is_cut else name


def _without_empty_parts(name: bytes) -> bytes:
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


def _is_shortened(name: bytes, repeated: bytes) -> bool:
    """Whether `repeated` is some folders of the name and the beginning of its last part."""
    pairs = zip(name, repeated, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    head = name.rfind(b"/", 0, common) + 1
    last = name[name.rfind(b"/") + 1 :]
    return head < len(repeated) and last.startswith(repeated[head:])


def _byte_of(letter: str) -> int:
    if letter.isascii():
        return ord(letter)
    return ord(letter) - 0xDC00 if "\udc80" <= letter <= "\udcff" else _ANY


def _differences(form: Sequence[int], repeated: bytes) -> list[tuple[int, int]] | None:
    """The pairs of bytes that differ; None if this form is not cut to that length."""
    if len(repeated) != len(form) and not _FULL <= len(repeated) <= len(form):
        return None
    return [
        (right, byte)
        for right, byte in zip(form, repeated, strict=False)
        if right not in (byte, _ANY) and not (right >= _ASCII and byte in b"?_")
    ]


def _is_one_bit(differences: list[tuple[int, int]] | None) -> bool:
    if differences is None or len(differences) != 1:
        return False
    right, byte = differences[0]
    return (right ^ byte).bit_count() == 1
