"""Progress bars by tqdm, which show on a terminal and are silent elsewhere."""

import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from threading import Event, RLock, Thread
from typing import Any, Final, cast

from tqdm import tqdm

_LOOK_S: Final = 0.5
_LARGE: Final = 10_000  # from here on numbers are shown as 12.3k


class _Bar(tqdm):  # pyright: ignore[reportMissingTypeArgument] only its stubs take one
    """A bar of this process alone.

    Its lock is between threads: tqdm's own lock would fix the start method of all processes.
    """

    monitor_interval = 0  # no monitor thread: each step draws by itself


cast("Any", _Bar).set_lock(RLock())


@contextmanager
def _bar(
    text: str, total: int, unit: str, show: bool | None
) -> Generator[Callable[..., object], None, None]:
    """A function to call with each step: `counted shards in /data:  25%|##5       | 3/12`.

    `show=None` draws only on a terminal, and nowhere where stderr is closed.
    """
    disable = not show if show is not None or sys.stderr is None else None
    with _Bar(
        total=total,
        desc=text,
        unit=unit,
        unit_scale=total >= _LARGE,
        ascii=True,
        miniters=1,
        disable=disable,
    ) as bar:
        yield bar.update


def progress_line(
    verb: str, total: int, where: str, *, show: bool | None = None
) -> AbstractContextManager[Callable[[], object]]:
    """A function to call after each shard."""
    return _bar(f"{verb} shards in {where or '.'}", total, " shards", show)


@contextmanager
def progress_bar(
    total: int, *, show: bool | None = None
) -> Generator[Callable[[str], None], None, None]:
    """A function to call as each task begins: `[######......] 2 of 4: reading, 00:12 left`.

    `show=None` draws only on a terminal. The bar is erased when the block ends.
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


def bytes_bar(
    verb: str, total: int, *, show: bool | None = None
) -> AbstractContextManager[Callable[[int], object]]:
    """A function to call with the bytes of each part."""
    return _bar(verb, total, "B", show)


def rows_bar(
    verb: str, total: int, *, show: bool | None = None
) -> AbstractContextManager[Callable[[int], object]]:
    """A function to call with the rows of each part."""
    return _bar(verb, total, " rows", show)


@contextmanager
def watched_bytes_bar(
    look: Callable[[], tuple[str, int, int]], *, show: bool | None = None
) -> Generator[None, None, None]:
    """A bar of bytes that others read: `scanned 3 of 12 shards:  48%|####     | 11.3G/23.6G`.

    Args:
        look: Gives the words, the bytes that were read and those of all; it is called by a thread.
        show: None draws only on a terminal.
    """
    if not _is_shown(show):
        yield
        return
    ended = Event()
    with _Bar(unit="B", unit_scale=True, ascii=True, dynamic_ncols=True) as bar:

        def draw() -> None:
            words, read, bar.total = look()
            bar.set_description(words, refresh=False)
            bar.update(read - bar.n)

        def watch() -> None:
            while not ended.wait(_LOOK_S):
                draw()

        thread = Thread(target=watch, name="lightning-shards-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            draw()


def _is_shown(show: bool | None) -> bool:
    if show is None:
        return sys.stderr is not None and sys.stderr.isatty()  # None: it is closed
    return show
