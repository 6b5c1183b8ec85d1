"""One line on stderr that counts shards while they are scanned."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def progress_line(
    verb: str, total: int, place: str, *, show: bool | None = None
) -> Generator[Callable[[], None], None, None]:
    """A function to call after each shard: it draws `counted 3 of 12 shards in /data`.

    `show=None` draws only on a terminal. The line ends with the block, by an error too.
    """
    is_shown = sys.stderr.isatty() if show is None else show
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if is_shown:
            sys.stderr.write(f"\r{verb} {done} of {total} shards in {place or '.'}")
            sys.stderr.flush()

    try:
        yield step
    finally:
        if is_shown:
            sys.stderr.write("\n")
