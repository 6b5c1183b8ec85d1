"""`lightning-shards show` and `info` read no more of remote shards than they show."""

import json

import pytest

from lightning_shards.remote.backend import TransportSettings
from lightning_shards.remote.transport import RemoteTransport
from lightning_shards.tools import index, info, show
from tests.remote.published import publish, server_put
from tests.tools.remote.conftest import COUNTS

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]


@pytest.fixture
def url(folder, server):
    return f"{server.url}/data/train-{{000000..000002}}.tar?sig=s3cr3t"


@pytest.fixture
def with_tables(folder, server, tmp_path):
    publish(sorted(folder.glob("*.tar")), server_put(server), tmp_path, counts=COUNTS)


@pytest.mark.usefixtures("with_tables")
def test_remote_shards_are_shown_like_local_ones(run_here, url, folder, tmp_path):
    sheets, labels = [tmp_path / "remote.png", tmp_path / "local.png"], []
    for urls, sheet in zip((url, folder / "*.tar"), sheets, strict=True):
        given = (urls, "--samples", 4, "--label", "cls", "--output", sheet)
        status, document = run_here(show.main)(*given)
        labels.append(document["labels"])
        assert status == 0
    assert labels[0] == labels[1]
    assert sheets[0].read_bytes() == sheets[1].read_bytes()


@pytest.mark.usefixtures("with_tables")
def test_the_numbers_of_remote_shards_are_those_of_local_ones(run_here, url, folder):
    documents = []
    for urls in (folder / "*.tar", url):
        status, document = run_here(info.main)(urls, "--classes")
        assert (status, document["samples"]) == (0, sum(COUNTS))
        assert "s3cr3t" not in json.dumps(document)
        documents.append(document)
    assert documents[0] == documents[1]


def test_storage_options_say_how_a_store_is_reached(
    run_here, real_server, monkeypatch, folder, tmp_path
):
    store = real_server("moto")
    for variable, value in store.environment.items():
        monkeypatch.setenv(variable, value)
    transport = RemoteTransport(TransportSettings(store.options))
    for path in sorted(folder.glob("*.tar")):
        transport.write(store.url_of(f"tools/{path.name}"), path.read_bytes())
    transport.close()
    urls = store.url_of("tools/train-{000000..000002}.tar")
    options = ["--storage-options", json.dumps(store.options)]
    formats = ["--format", "wids,members", "--upload"]
    assert run_here(index.main)(urls, *formats, *options)[0] == 0
    assert run_here(info.main)(urls, *options)[1]["samples"] == sum(COUNTS)
    sheet = ["--output", tmp_path / "sheet.png"]
    assert len(run_here(show.main)(urls, *sheet, *options)[1]["labels"]) == sum(COUNTS)
