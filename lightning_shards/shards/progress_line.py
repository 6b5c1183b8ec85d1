"""Progress bars by tqdm, which show on a terminal and are silent elsewhere."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Final, cast

from tqdm import tqdm

_LARGE: Final = 10_000  # from here on numbers are shown as 12.3k
_DELAY_S: Final = 1.0  # what takes less needs no bar


class _Bar(tqdm):  # pyright: ignore[reportMissingTypeArgument] only its stubs take one
    """A bar of this process alone.

    Its lock is between threads: tqdm's own lock would fix the start method of all processes.
    """

    monitor_interval = 0  # no monitor thread: each step draws by itself


cast("Any", _Bar).set_lock(RLock())


@contextmanager
def progress_bar(text: str, total: int, unit: str) -> Generator[Callable[..., object]]:
    """A function to call with the units of each step: `join 'text':  25%|##5       | 3/12`.

    It is drawn on a terminal only, after a second, and nowhere where stderr is closed.
    """
    disable = True if sys.stderr is None else None
    look: Any = {"unit_scale": total >= _LARGE, "ascii": True, "miniters": 1, "delay": _DELAY_S}
    with _Bar(total=total, desc=text, unit=unit, disable=disable, **look) as bar:
        yield bar.update
