"""The user's token of the Hugging Face hub, from where the hub's own tools keep it.

Their package is not asked: it is in no dependency, and a token must not depend on it.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from lightning_shards.errors import ConfigError

_VARIABLES: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_SENDABLE = re.compile(r"[\x21-\x7e]+")

PLACES: Final = (
    "HF_TOKEN, HUGGING_FACE_HUB_TOKEN, the file that HF_TOKEN_PATH names, $HF_HOME/token, "
    "~/.cache/huggingface/token"
)
"""Where it is looked for, in this order, for messages; of the files only the first is read."""


def hub_token() -> str | None:
    """The first token that there is, looked for anew, since users renew theirs during a run.

    Raises:
        ConfigError: It holds what no header can; the message does not show it.
    """
    for name in _VARIABLES:
        if token := os.environ.get(name, "").strip():
            return _sendable(token, name)
    file = _file()
    with suppress(OSError, RuntimeError, UnicodeDecodeError):  # there is none that can be read
        if token := Path(file).expanduser().read_text().strip():
            return _sendable(token, file)
    return None


def _file() -> str:
    """The file in which `hf auth login` keeps the token."""
    if path := os.environ.get("HF_TOKEN_PATH"):
        return path
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    return f"{home}/token"


def _sendable(token: str, place: str) -> str:
    if not _SENDABLE.fullmatch(token):
        raise ConfigError(
            f"the token in {place} holds a space, a control character or one that is not ASCII, "
            "and so cannot be one; copy it anew from https://huggingface.co/settings/tokens"
        )
    return token
