"""Waiting for processes to end, and telling those that run from those that have ended."""

import time
from collections.abc import Callable

import psutil


def is_alive(process: psutil.Process) -> bool:
    """Whether a process has not ended; one whose parent has not fetched its status has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_running(pid: int) -> bool:
    """Whether the process that has this number now has not ended."""
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def wait_for(is_reached: Callable[[], bool], within_s: float) -> bool:
    """Whether something is reached within so many seconds."""
    end = time.perf_counter() + within_s
    while not is_reached():
        if time.perf_counter() > end:
            return False
        time.sleep(0.05)
    return True
