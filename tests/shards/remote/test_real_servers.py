"""The contract of transports over servers of other makers, and what only these show.

That is preconditions, credentials, and faults of a proxy before a real store.
"""

import pytest
from real_servers import TRAITS

from lightning_shards.errors import FileAccessError, ShardNotFoundError
from lightning_shards.shards.remote.transport import (
    RemoteTransport,
    TransportSettings,
)
from tests.shards.remote.contract import TransportContract

pytestmark = pytest.mark.network

CLOUDS = ["moto", "azurite", "gcs"]


@pytest.fixture(params=TRAITS)
def store(request, real_store):
    return real_store(request.param)


class TestContract(TransportContract):
    pass


@pytest.mark.parametrize("name", [name for name, traits in TRAITS.items() if traits.is_private])
def test_what_is_private_is_not_read_without_credentials(name, real_store, real_server):
    store, scheme = real_store(name), TRAITS[name].scheme
    options = {**real_server(name).options[scheme], "anonymous": True}
    anonymous = RemoteTransport(TransportSettings({scheme: options}))
    with pytest.raises(FileAccessError, match=r"403 .* credentials were looked for in A") as caught:
        anonymous.read(store.url, 0, 9)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("name", CLOUDS)
def test_an_unknown_bucket_is_not_found(name, real_store):
    transport, scheme = real_store(name).transport, TRAITS[name].scheme
    with pytest.raises(ShardNotFoundError, match=rf"{scheme}://nowhere/a\.tar .*the bucket"):
        transport.read(f"{scheme}://nowhere/a.tar", 0, 9)
