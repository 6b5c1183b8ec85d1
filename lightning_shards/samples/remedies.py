"""What a user can do about the bytes of a member that its decoder cannot read."""

import json


def decode_remedy(field: str, decoder: str, data: bytes) -> str:
    """The settings that would read a member which is no whole number, or general advice.

    >>> decode_remedy("label", "int", b"0.5")
    'for such numbers set decode: {label: json}'
    """
    if decoder == "int" and _is_fraction(data):
        return f"for such numbers set decode: {{{field}: json}}"
    if decoder == "int" and any(map(str.isalpha, data.decode(errors="ignore"))):
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
