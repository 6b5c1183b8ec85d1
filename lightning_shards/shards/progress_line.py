"""The door to tqdm: what counts shards or measurements on a terminal, and is silent elsewhere."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import RLock
from typing import Any, cast

from tqdm import tqdm


class _Bar(tqdm):  # pyright: ignore[reportMissingTypeArgument] only its stubs take one
    """A bar of this process alone.

    Its lock is a thread's: tqdm's own would decide for the whole program how processes start.
    """

    monitor_interval = 0  # no thread beside it: each step draws by itself


cast("Any", _Bar).set_lock(RLock())


@contextmanager
def progress_line(
    verb: str, total: int, place: str, *, show: bool | None = None
) -> Generator[Callable[[], object], None, None]:
    """A function to call after each shard: it draws `counted 3 of 12 shards in /data`.

    `show=None` draws only on a terminal. The line ends with the block, by an error too.
    """
    if not _is_shown(show):
        yield lambda: None
        return
    text = f"{verb} {{n}} of {{total}}{{desc}}"  # a place may have braces
    with _Bar(total=total, desc=f" shards in {place or '.'}", bar_format=text, miniters=1) as bar:
        yield bar.update


@contextmanager
def progress_bar(
    total: int, *, show: bool | None = None
) -> Generator[Callable[[str], None], None, None]:
    """A function to call as each task begins: `[######......] 2 of 4: reading, 00:12 left`.

    `show=None` draws only on a terminal. Nothing of it is left behind the block.
    """
    if not _is_shown(show):
        yield lambda _: None
        return
    text = "[{bar:24}]{desc} {remaining} left"
    with _Bar(total=total, bar_format=text, ascii=".#", leave=False) as bar:
        begun = 0

        def begin(what: str) -> None:
            nonlocal begun
            bar.n, begun = begun, begun + 1
            bar.set_description_str(f" {begun} of {total}: {what},")

        yield begin


def _is_shown(show: bool | None) -> bool:
    return sys.stderr.isatty() if show is None else show
