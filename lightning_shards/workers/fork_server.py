"""What the fork server of worker processes imports first, so that it leaves nothing behind.

It ends by itself when trainer and workers are gone. If the trainer was killed before it had a
worker, nobody else is left to remove the socket that the server listens at, and its folder.
"""

import atexit
import os
from contextlib import suppress
from multiprocessing import forkserver
from typing import Any, cast


def _remove_socket() -> None:
    address: str | None = cast("Any", forkserver)._forkserver._forkserver_address  # noqa: SLF001 it has no other way to ask
    if address:
        with suppress(OSError):  # gone already, or others use the folder
            os.unlink(address)  # noqa: PTH108 an address, as multiprocessing keeps it
            os.rmdir(os.path.dirname(address))  # noqa: PTH106, PTH120


atexit.register(_remove_socket)  # forks end without it
