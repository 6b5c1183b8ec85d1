"""How many processors there are to share."""

import os


def num_cpus() -> int:
    """Processors that this process may use: a container may have fewer than its machine."""
    # Linux alone has it
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
