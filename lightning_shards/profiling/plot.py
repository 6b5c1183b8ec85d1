"""The plot of a run: the time of a step, and how much of it was spent waiting for data."""

import importlib.util
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from lightning_shards.errors import ConfigError
from lightning_shards.profiling.rates import TimeTotals
from lightning_shards.shards.files import make_folder, new_file

SUFFIXES = (".pdf", ".png", ".svg")


class History:
    """The time totals of consecutive windows of a run, at most `capacity` of them.

    When there is one too many, neighbours are merged in pairs, and all later windows are made as
    long as these, so that the whole run stays visible at one resolution.

    Args:
        capacity: An even number.
    """

    def __init__(self, capacity: int = 1000) -> None:
        self._capacity = capacity
        self._windows: list[TimeTotals] = []
        self._merged = 1  # windows that were added for each one that is kept
        self._open, self._in_open = TimeTotals(), 0

    def add(self, window: TimeTotals) -> None:
        """Add the totals since the window before; a window without steps is left out."""
        if not window.batches:
            return
        self._open, self._in_open = self._open.plus(window), self._in_open + 1
        if self._in_open < self._merged:
            return
        self._windows.append(self._open)
        self._open, self._in_open = TimeTotals(), 0
        if len(self._windows) == self._capacity:
            pairs = zip(self._windows[::2], self._windows[1::2], strict=True)
            self._windows = [first.plus(second) for first, second in pairs]
            self._merged *= 2

    @property
    def windows(self) -> list[TimeTotals]:
        """All windows, including the open one."""
        return self._windows + [self._open] * bool(self._open.batches)


def require_plot(path: str) -> None:
    """Check before a run that its plot can be made at the end.

    Raises:
        ConfigError: Matplotlib is missing, or the suffix is none of the supported ones.
    """
    if Path(path).suffix not in SUFFIXES:
        raise ConfigError(f"plot={path!r} must be a file that ends in one of {', '.join(SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            f"plot={path!r} needs matplotlib, which is not installed: "
            '`pip install "lightning-shards[plot]"`, or leave plot out'
        )


def save_plot(path: str, windows: Sequence[TimeTotals]) -> None:
    """Draw the mean time of a step in each window, and its mean wait, in milliseconds."""
    from matplotlib.figure import Figure

    steps = list(accumulate((window.batches for window in windows), initial=0.0))
    figure: Any = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for label, seconds in (
        ("step", [window.wall_s for window in windows]),
        ("of it, waiting for data", [window.wait_s for window in windows]),
    ):
        pairs = zip(seconds, windows, strict=True)
        milliseconds = [1000 * second / max(window.batches, 1) for second, window in pairs]
        axes.stairs(milliseconds, steps, fill=label != "step", label=label)
    axes.set(xlabel="step of this fit", ylabel="ms a step (rank 0)", ylim=(0, None))
    axes.legend()
    save_figure(figure, path)


def save_figure(figure: Any, path: str) -> None:
    """Write a figure to a file in one step; a link at the path is replaced, not followed.

    Raises:
        FileAccessError: The file cannot be written.
    """
    make_folder(Path(path).parent)
    with new_file(Path(path)) as file:
        figure.savefig(file, dpi=150, format=Path(path).suffix[1:])
