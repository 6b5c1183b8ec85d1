"""The number of processors that this process may use."""

import os


def num_cpus() -> int:
    """Processors that this process may use: a container may have fewer than its machine."""
    # Only Linux has sched_getaffinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
