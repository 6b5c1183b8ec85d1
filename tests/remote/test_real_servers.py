"""The contract of transports over servers of other makers."""

import pytest
from real_servers import NAMES

from tests.remote.contract import TransportContract

pytestmark = pytest.mark.network


@pytest.fixture(params=NAMES)
def store(request, real_store):
    return real_store(request.param)


class TestContract(TransportContract):
    pass
