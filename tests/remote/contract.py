"""A store of any kind as tests see it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lightning_shards.remote.transport import RemoteTransport

DATA = np.random.default_rng(0).bytes(100_003)
SIZE = len(DATA)


@dataclass
class Store:
    """A store that holds `DATA` as `some/data.tar`, and a transport that reads it."""

    transport: RemoteTransport
    url_of: Callable[[str], str]
    put: Callable[[str, bytes], None]

    @property
    def url(self) -> str:
        return self.url_of("some/data.tar")
