"""The number of a run, by which objects are known of which a store tells neither version nor time.

Two of them of one size cannot be told apart. So what is kept of one counts for the processes of
this run alone, which share the number, and the next run asks for it anew. A dict serves without a
lock, which a fork could inherit held.
"""

import logging
import secrets
from typing import Final

from lightning_shards.shards.urls import redact

_SECOND: Final = 10**9
_MOST: Final = 1 << 30
_run: dict[str, int] = {}
_warned: dict[str, bool] = {}

_log = logging.getLogger(__name__)


def run_number() -> int:
    """What is in the place of a version: a time before 1970 in whole seconds, as ns.

    Files can have it as their time of change, so that one look shows that they are of this run.
    """
    return _run.get("number") or _run.setdefault(
        "number", -_SECOND * (1 + secrets.randbelow(_MOST))
    )


def take_over_run_number(number: object) -> None:
    """Take the number that another process of the run has drawn, unless there is one here.

    Raises:
        ValueError: It is no such number.
    """
    if not isinstance(number, int) or not _is_run_number(number):
        raise ValueError(f"{number!r} is no number of a run")
    if _run.setdefault("number", number) == number:
        _warned["here"] = True  # who drew it warns


def is_of_another_run(number: int) -> bool:
    """Whether a version, or the time of change of a file, is the number of another run."""
    return _is_run_number(number) and number != run_number()


def forget_run_number() -> None:
    """Draw another one, as a new process does."""
    _run.clear()
    _warned.clear()


def warn_of_undated(url: str) -> None:
    """Say once in a run that an object cannot be told from another one of its size."""
    run_number()
    if not _warned.get("here"):
        _warned["here"] = True
        _log.warning(
            "the server of %s tells neither ETag nor Last-Modified, so that a shard which is "
            "replaced by one of its size cannot be told from it: what is kept of such shards "
            "serves this run alone, and they must not change while it reads them; let the server "
            "send one of the two headers",
            redact(url),
        )


def _is_run_number(number: int) -> bool:
    return -_MOST * _SECOND <= number < 0 and not number % _SECOND
