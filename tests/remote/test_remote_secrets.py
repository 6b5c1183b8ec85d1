"""Passwords, queries, tokens and keys: in no message, traceback, log, repr or pickle."""

import logging
import pickle
import traceback
from dataclasses import replace

import pytest
from fault_server import Fault

from lightning_shards.errors import ShardError
from lightning_shards.remote.backend import TransportSettings
from lightning_shards.remote.storage import MakeRemoteStorage
from lightning_shards.remote.transport import RemoteTransport
from tests.remote.conftest import FACES, QUICK, options_of, url_of
from tests.remote.published import DATA
from tests.test_secrets import all_of

pytestmark = pytest.mark.network

SECRET = "s3cr3t"
FAULTS = [
    None,
    Fault("status", 403),
    Fault("status", 500),
    Fault("cut", 0),
    Fault("redirect", f"ftp://{SECRET}@host/?{SECRET}"),
    Fault("redirect", f"http://127.0.0.1:9/?sig={SECRET}"),
    Fault("headers", None, (("Content-Range", f"bytes {SECRET}"),)),
]


@pytest.fixture
def settings(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/token").write_text(f"hf_{SECRET}-token")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"{SECRET}-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{SECRET}-key")
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"{SECRET}-session")
    options = {
        scheme: {name: value for name, value in given.items() if name != "anonymous"}
        for scheme, given in options_of(server).items()
    }
    return TransportSettings(options, 4, replace(QUICK, tries=3), str(tmp_path / "cache"))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_nothing_that_is_secret_is_shown(face, fault, server, settings, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    server.objects["data/a.tar"] = DATA
    server.always = fault
    url = url_of(server, face, "a.tar")
    if face == "http":
        url = url.replace("://", f"://me:{SECRET}-password@")
    transport = RemoteTransport(settings)
    shown = [repr(MakeRemoteStorage(settings))]
    if fault is None:
        transport.read(url, 0, 9)
    else:
        with pytest.raises(ShardError) as caught:
            transport.read(url, 0, 9)
        error = caught.value
        assert error.__cause__ is None
        assert error.__context__ is None
        shown += [all_of(error), *traceback.format_exception(error)]
    shown += [caplog.text, *capfd.readouterr()]
    assert SECRET not in "".join(shown)
    assert SECRET.encode() not in pickle.dumps(MakeRemoteStorage(settings))
    transport.close()
