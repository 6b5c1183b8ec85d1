"""The standard streams of a command: one may be closed, and the reader of one may be gone."""

import os
import sys
from contextlib import suppress
from typing import Final

PIPE_CLOSED: Final = 141
"""The exit status of a command whose output nobody reads any more, before its result is known: that
which a shell gives to a program that SIGPIPE ends."""


def open_missing_streams() -> None:
    """Open the null device in place of standard streams that are closed, as by `>&-`.

    Otherwise the next file that is opened is taken for them. Processes inherit it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123 it stays open
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def drop_unwritten() -> None:
    """Drop what stdout and stderr do not take, because Python tries again as it ends."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "wb") as null, suppress(OSError):  # noqa: PTH123
                os.dup2(null.fileno(), stream.fileno())
