"""The limit of open files of this process: how it is raised, and what is left of it."""

import os
import resource
import sys
from typing import Final

_OTHER_FILES: Final = 1024
"""Descriptors for all else, such as sockets, pipes, shared memory and what the trainer has open: as
many as a process may have by default, so that shards take nothing away from it."""

_SPARE_FILES: Final = 16
"""Descriptors that are left for all else where the limit is low: pipes, shared memory, tables."""


def allow_open_files(number: int) -> None:
    """Let this process have so many open files beside its others, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def share_of_files(num_parts: int) -> int:
    """Files that each of so many parts may have open, which have half of the limit together."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft // 2 // num_parts


def files_allowed() -> int:
    """More files that this process may open, as far as its limit goes, but for a few to spare."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    try:
        num_open = sum(1 for _ in os.scandir("/dev/fd"))
    except OSError:
        num_open = 4 * _SPARE_FILES
    return soft - num_open - _SPARE_FILES
