"""A module that the fork server of worker processes imports first, so that it leaves no files.

The server ends by itself when the trainer and the workers are gone. If the trainer was killed
before it had a worker, no other process is left to remove the server's socket and its folder.
"""

import atexit
import os
from contextlib import suppress
from multiprocessing import forkserver
from typing import Any, cast


def _remove_socket() -> None:
    address: str | None = cast("Any", forkserver)._forkserver._forkserver_address  # noqa: SLF001 there is no public way to ask
    if address:
        with suppress(OSError):  # it is gone already, or other processes use the folder
            os.unlink(address)  # noqa: PTH108 multiprocessing keeps the address as a str
            os.rmdir(os.path.dirname(address))  # noqa: PTH106, PTH120


atexit.register(_remove_socket)  # the workers, which are forks, do not run it
