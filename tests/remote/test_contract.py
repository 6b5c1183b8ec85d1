"""Every backend keeps the contract of transports, here, in other processes and after a fork."""

from collections.abc import Iterator

import pytest
from fault_server import Fault

from lightning_shards.errors import FileAccessError
from tests.remote.conftest import FACES
from tests.remote.contract import DATA, Store, TransportContract, read_in_fork

pytestmark = pytest.mark.network


@pytest.fixture(params=[*FACES, "owned"])
def store(request, server, face_stores) -> Iterator[Store]:
    if request.param in FACES:
        store = face_stores(request.param)
        yield store
        store.transport.close()
    else:
        yield request.getfixturevalue("file_store")


class TestContract(TransportContract):
    pass


@pytest.mark.parametrize("face", FACES)
def test_who_is_denied_is_asked_for_other_credentials_once(face, server, face_stores):
    store = face_stores(face)
    server.always = Fault("status", 403)
    with pytest.raises(FileAccessError, match=r"403 Forbidden, also with credentials") as caught:
        store.transport.read(store.url, 0, 9)
    assert "s3cr3t" not in str(caught.value)
    asked = [each for each in server.asked if "resolve" not in each.path and each.port]
    assert len(asked) == (4 if face == "ais" else 2)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_of_a_process_that_used_obstore_raises_and_never_hangs(
    server, face_stores, file_store
):
    stores = [face_stores(face) for face in ("s3", "http", "ais", "hf")]
    for store in stores:
        store.transport.read(store.url, 0, 3)
    reads = [(store.url, 5, 99) for store in stores] + [(file_store.url, 5, 99)]
    refused, *others = read_in_fork(stores[0].transport, reads)
    assert others == [DATA[5:99]] * 4
    assert refused.startswith("ConfigError: s3:// was used in process ")
    assert "multiprocessing_context='forkserver'" in refused
    assert stores[0].transport.read(stores[0].url, 5, 99).data == DATA[5:99]
