"""Clocks of starvation: the time that a device is idle because it waits for data.

On a CPU all waiting is lost. The trainer's thread runs ahead of a CUDA device, so while it waits
for a batch, the device may still be at work. An event behind the last kernel of the step shows it:
if the event has been reached when the next batch comes, the device ran dry during the wait, and the
whole wait counts as lost; if not, nothing was lost. The sum is an upper bound, because a device
that ran dry just before the batch came counts as idle for the whole wait. Events are queried, never
waited for.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch


class StarvationClock(Protocol):
    """The time lost so far; the methods are called in the order of a step.

    Attributes:
        starved_s: Seconds of waiting that count as lost.
        forward_s: Seconds that forward passes took.
    """

    starved_s: float
    forward_s: float

    def batch_came(self, waited_s: float) -> None:
        """Called when the next batch comes, after a wait of so many seconds."""
        ...

    def forward_begins(self) -> None:
        """Called when a batch goes into the model."""
        ...

    def forward_ended(self) -> None:
        """Called before a backward pass; only the first one of a step counts."""
        ...

    def step_ended(self) -> None:
        """Called when all work of a step is queued."""
        ...


class HostClock:
    """The clock for a CPU, which does the work itself: all waiting is lost, and figures are exact.

    For devices other than CUDA the figures are an upper bound.
    """

    def __init__(self) -> None:
        self.starved_s = 0.0
        self.forward_s = 0.0
        self._forward_began: float | None = None

    def batch_came(self, waited_s: float) -> None:
        """Count the wait."""
        self.starved_s += waited_s

    def forward_begins(self) -> None:
        """Store the time."""
        self._forward_began = time.perf_counter()

    def forward_ended(self) -> None:
        """Count the time since the forward pass began."""
        if self._forward_began is not None:
            self.forward_s += time.perf_counter() - self._forward_began
            self._forward_began = None

    def step_ended(self) -> None:
        """Do nothing, because nothing is queued."""


class Event(Protocol):
    """The methods of `torch.cuda.Event` that are used here; none of them blocks."""

    def record(self) -> object:
        """Put the event behind all work queued so far."""
        ...

    def query(self) -> bool:
        """Whether the device has reached the event."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds on the device from this event to a later one; both must be reached."""
        ...


class DeviceClock:
    """The clock for a CUDA device: a wait is lost only if the device had ended its work.

    A forward pass is timed only when the pass timed before it has ended, and its time counts for
    all passes in between. So three events are enough, however far the trainer's thread runs ahead.

    Args:
        make_event: Makes an event with timing enabled.
    """

    def __init__(self, make_event: Callable[[], Event]) -> None:
        self.starved_s = 0.0
        self.forward_s = 0.0
        self._step_end, self._forward_start, self._forward_end = (make_event() for _ in range(3))
        self._has_step_ended = self._is_timing = self._is_timed = False
        self._forwards = 0

    def batch_came(self, waited_s: float) -> None:
        """Count the wait if the device has ended its step."""
        if self._has_step_ended and self._step_end.query():
            self.starved_s += waited_s

    def forward_begins(self) -> None:
        """Count the pass that was timed before if it has ended, and time this one."""
        if self._is_timed:
            if not self._forward_end.query():
                self._forwards += 1
                return
            seconds = self._forward_start.elapsed_time(self._forward_end) / 1000
            self.forward_s += seconds * self._forwards
        self._forwards = 1
        self._is_timing, self._is_timed = True, False
        self._forward_start.record()

    def forward_ended(self) -> None:
        """End the timing of this pass."""
        if self._is_timing:
            self._forward_end.record()
            self._is_timing, self._is_timed = False, True

    def step_ended(self) -> None:
        """Put the event behind the step."""
        self._step_end.record()
        self._has_step_ended = True


def make_clock(device: torch.device) -> StarvationClock:
    """The clock for a rank's device."""
    if device.type == "cuda":
        return DeviceClock(lambda: cast("Any", torch.cuda.Event)(enable_timing=True))
    return HostClock()
