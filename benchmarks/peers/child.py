"""The fresh process of a job: `python -m benchmarks.peers.child RESULT`."""

from importlib import import_module
from typing import Any

import torch

from benchmarks.peers.job import Job
from benchmarks.peers.processes import answer


def act(job: Job) -> dict[str, Any]:
    """Call the function that the job names."""
    torch.set_num_threads(1)
    module, _, function = job.action.partition(":")
    return getattr(import_module(module), function)(job)


if __name__ == "__main__":
    answer(act)
