"""Remote shards on servers of ours and of others, and tools that are run on them here."""

from functools import partial

import pytest

from lightning_shards.remote.backend import TransportSettings
from lightning_shards.tools import console
from tests.remote.conftest import QUICK, real_server, server, started_server
from tests.tools.conftest import write_samples

__all__ = ["real_server", "server", "started_server"]

COUNTS = [4, 3, 2]


@pytest.fixture
def folder(tmp_path, server):
    """Shards of this machine that the server has, too."""
    folder = write_samples(tmp_path / "data", COUNTS)
    for path in folder.iterdir():
        server.objects[f"data/{path.name}"] = path.read_bytes()
    return folder


@pytest.fixture
def quick(monkeypatch):
    """All times of the policy are divided by 100."""
    made = partial(TransportSettings, policy=QUICK)
    monkeypatch.setattr(console, "TransportSettings", made)
