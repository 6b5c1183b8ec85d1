"""A name that the processes of one job on a machine share, which they know without asking.

Several jobs may run on a machine, as in a sweep with one job per GPU. The ranks of one of them have
in common where they meet; launchers and Lightning put that into the environment before data is set
up.
"""

import os
import secrets
from functools import cache
from typing import Final

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
