"""A server of shards in memory, which does wrong what it is told to."""

import pytest
from fault_server import fault_server

from tests.tools.conftest import run_here, run_json
from tests.tools.remote.conftest import folder, quick

__all__ = ["folder", "quick", "run_here", "run_json"]


@pytest.fixture(scope="session")
def index_server():
    with fault_server() as server:
        yield server


@pytest.fixture
def server(index_server):
    index_server.reset()
    yield index_server
    index_server.reset()
