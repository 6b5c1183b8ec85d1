"""What this process shares: its processors, the name of its job, the stage it is in, signals."""

import os
import secrets
import signal
import threading
from functools import cache
from types import FrameType
from typing import Final, Self

from lightning_shards.system.cancellation import is_cancellable


def num_cpus() -> int:
    """Processors that this process may use: a container may have fewer than its machine."""
    # Only Linux has sched_getaffinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_MEETING: Final = ("MASTER_ADDR", "MASTER_PORT")
_LAUNCHED_AS: Final = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")


def job_name(ranks: int) -> str:
    """The name of the job of this process.

    Processes that take part in no group of several ranks have names of their own, which hold for as
    long as they live.

    Args:
        ranks: Ranks of the job on this machine, as far as they are known; 1 where they are not.
    """
    environment = os.environ  # noqa: TID251 it tells jobs apart, and changes no setting
    has_others = ranks > 1 or environment.get("WORLD_SIZE", "1") != "1"
    if has_others and "MASTER_PORT" in environment:
        return " ".join(environment.get(name, "") for name in (*_MEETING, *_LAUNCHED_AS))
    return "" if ranks > 1 else _name_of_process(os.getpid())


@cache
def _name_of_process(pid: int) -> str:
    return f"{pid} {secrets.token_hex(8)}"


class DeferredSignal:
    """A context in which a signal is only noted, and handled at its end.

    An error that leaves the context takes the place of the handler. Outside of the main thread,
    where nothing handles signals, and where the process has no handler, the context does nothing.

    Args:
        number: The signal.

    Attributes:
        is_noted: Whether it has come.
    """

    def __init__(self, number: signal.Signals) -> None:
        self.is_noted, self._number = False, number

    def __enter__(self) -> Self:
        self._handler = signal.getsignal(self._number)
        self._is_set = threading.current_thread() is threading.main_thread()
        self._is_set = self._is_set and callable(self._handler)
        if self._is_set:
            signal.signal(self._number, self._note)
        return self

    def __exit__(self, error: type[BaseException] | None, *others: object) -> None:
        if not self._is_set:
            return
        signal.signal(self._number, self._handler)
        if self.is_noted and error is None and callable(self._handler):
            self._handler(self._number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.is_noted = True


FETCH_STAGE: Final = 6
"""The number of the stage in which bytes from afar are waited for."""

_published = [memoryview(bytearray(1))]


def publish_stages_in(byte: memoryview) -> None:
    """Make this process write the stage that began last into this byte from now on; 0: none."""
    _published[0] = byte


def published_byte() -> memoryview:
    """Where it is written."""
    return _published[0]


class Fetching:
    """A context in which bytes from afar are waited for; then the stage before it goes on.

    Threads that only fetch ahead of the batches publish nothing.
    """

    __slots__ = ("_before", "_byte")

    def __enter__(self) -> None:
        self._byte = _published[0] if is_cancellable() else memoryview(bytearray(1))
        self._before = self._byte[0]
        self._byte[0] = FETCH_STAGE

    def __exit__(self, *exception: object) -> None:
        self._byte[0] = self._before
