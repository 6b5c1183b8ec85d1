"""What the fork server imports before all else, and nothing else does: it leaves signals alone.

Launchers send signals to every process of a job, and Ctrl-C goes to all of a group.
"""

import atexit
import os
import shutil
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from lightning_shards.system.guard import leave_signals_to_owner

_std: Any = forkserver


@atexit.register
def _remove_socket() -> None:
    """Remove the folder of the owner, which is gone: one that lives kills its server."""
    socket = Path(_std._forkserver._forkserver_address)  # noqa: SLF001 it is told nowhere else
    shutil.rmtree(socket.parent, ignore_errors=True)


os.setpgid(0, 0)
leave_signals_to_owner()
