"""The contract of transports over servers of other makers, and credentials of moto."""

import pytest
from real_servers import NAMES

from lightning_shards.errors import FileAccessError, ShardNotFoundError
from lightning_shards.remote.transport import RemoteTransport, TransportSettings
from tests.remote.contract import TransportContract

pytestmark = pytest.mark.network


@pytest.fixture(params=NAMES)
def store(request, real_store):
    return real_store(request.param)


class TestContract(TransportContract):
    pass


def test_what_is_private_is_not_read_without_credentials(real_store, real_server):
    store = real_store("moto")
    options = {**real_server("moto").options["s3"], "anonymous": True}
    anonymous = RemoteTransport(TransportSettings({"s3": options}))
    with pytest.raises(FileAccessError, match=r"403 .* credentials, which belong in A") as caught:
        anonymous.read(store.url, 0, 9)
    assert "s3cr3t" not in str(caught.value)


def test_an_unknown_bucket_is_not_found(real_store):
    with pytest.raises(ShardNotFoundError, match=r"s3://nowhere/a\.tar .*the bucket"):
        real_store("moto").transport.read("s3://nowhere/a.tar", 0, 9)
