"""Which schemes a transport reads, what its stores may be told, and what fsspec may do to it."""

from ftplib import error_temp
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from lightning_shards.errors import ConfigError, FileAccessError, ShardNotFoundError, StorageError
from lightning_shards.remote import cloud
from lightning_shards.remote.backend import TransportSettings
from lightning_shards.remote.transport import RemoteTransport
from tests.remote.conftest import QUICK, url_of
from tests.remote.published import DATA

pytestmark = pytest.mark.network


def test_a_scheme_that_nobody_knows_is_a_storage_error():
    with pytest.raises(StorageError, match=r"nowhere://b/a.tar cannot be read: fsspec raised Val"):
        RemoteTransport().read("nowhere://b/a.tar", 0, 9)


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("s3", {"endpiont": "http://h"}, "no 'endpiont' that is a str; there are endpoint: str, "),
        ("s3", {"secret_access_key": "s3cr3t"}, "looks like a secret.*AWS_SECRET_ACCESS_KEY"),
        ("s3", {"endpoint": "http://me:s3cr3t@h"}, "'endpoint' looks like a secret"),
        ("az", {"endpoint": "http://h?sv=1&sig=s3cr3t"}, "AZURE_STORAGE_ACCOUNT_KEY"),
        ("ftp", {"host": "h", "tls": {"key": "s3cr3t"}}, "'key' looks like a secret"),
        ("s3", {"anonymous": "yes"}, "no 'anonymous' that is a str; .*anonymous: bool"),
        ("https", {"verify": False}, "have no 'verify' that is a bool; there are ca: str"),
        ("s3", {"endpoint": "minio:9000"}, "endpoint of s3 must be .* write https://HOST"),
    ],
)
def test_options_that_a_store_does_not_know_are_refused(scheme, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        RemoteTransport(TransportSettings({scheme: options})).read(f"{scheme}://b/a.tar", 0, 9)
    assert "s3cr3t" not in str(caught.value)


def test_without_credentials_the_error_says_at_once_where_they_belong(server, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    settings = TransportSettings({"s3": {"endpoint": server.url, "region": "us-east-1"}})
    with pytest.raises(FileAccessError, match=r"no credentials were found.* belong in AWS_ACCESS"):
        RemoteTransport(settings).read("s3://data/a.tar", 0, 99)
    assert server.asked == []


def test_a_store_without_etag_and_date_is_refused(make_transport, server):
    server.objects["data/a.tar"], server.has_etags, server.has_dates = DATA, False, False
    with pytest.raises(StorageError, match="tells neither ETag nor Last-Modified"):
        make_transport().read(url_of(server, "s3", "a.tar"), 0, 9)


@pytest.mark.parametrize("key", ["", "/a.tar", "a.tar/", "x//a.tar", "./a", "x/../a", "x/."])
def test_a_key_that_obstore_would_read_as_another_one_is_refused(key):
    with pytest.raises(StorageError, match=r"try 1 .*write s3://BUCKET/KEY.*is empty"):
        RemoteTransport().read(f"s3://bucket/{key}", 0, 9)


def test_without_obstore_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(cloud, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'lightning-shards\[remote\]'"):
        RemoteTransport().read("s3://b/a.tar", 0, 9)


# --- fsspec

URL = "dropping://me:p%40ss@host/data/a.tar"


class SshException(Exception):  # noqa: N818 as that of paramiko
    pass


class Dropping(MemoryFileSystem):
    """One file, and connections that break as told and then stay broken, as those of paramiko."""

    protocol = "dropping"
    breaks: ClassVar[list[Exception | None]] = []
    made: ClassVar[list[dict]] = []
    files: ClassVar[list[tuple[bytes, int]]] = []  # and its time of change; each is read once

    def __init__(self, **settings):
        super().__init__(**settings)
        self.error = None
        self.made.append(settings)

    @staticmethod
    def _get_kwargs_from_urls(_):
        return {"username": "me", "password": "p%40ss"}

    def info(self, path, **settings):
        self._use()
        data, changed = self.files[0]
        return {"size": len(data), "created": None, "mtime": changed}

    def cat_file(self, path, start=None, end=None, **settings):
        self._use()
        data = (self.files.pop(0) if self.files[1:] else self.files[0])[0]
        return data[start:end]

    def _use(self):
        self.error = self.error or (self.breaks.pop(0) if self.breaks else None)
        if self.error is not None:
            raise self.error


@pytest.fixture
def dropping():
    fsspec.register_implementation("dropping", Dropping, clobber=True)
    Dropping.breaks, Dropping.made, Dropping.files = [], [], [(DATA, 7)]
    yield Dropping
    Dropping.clear_instance_cache()


@pytest.fixture
def transport(dropping):
    settings = TransportSettings({"dropping": {"encoding": "latin-1"}}, policy=QUICK)
    return RemoteTransport(settings, sleep=lambda _: None)


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (FileNotFoundError("s3cr3t"), ShardNotFoundError, "there is no such file"),
        (PermissionError("s3cr3t"), FileAccessError, "this user may not read it"),
        (ConnectionResetError("s3cr3t"), StorageError, r"ConnectionResetError \(try 10 of 10\)"),
        (RuntimeError("s3cr3t"), StorageError, r"RuntimeError \(try 1 of 10\)"),
    ],
)
def test_what_fsspec_raises_is_an_error_of_ours(raised, error, message, dropping, transport):
    dropping.breaks = [raised] * 10
    with pytest.raises(error, match=message) as caught:
        transport.read(URL, 0, 9)
    assert "s3cr3t" not in str(caught.value)


def test_a_file_that_is_replaced_by_one_of_its_size_while_it_is_read_is_read_again(
    dropping, transport
):
    new = DATA[::-1]
    dropping.files.append((new, 8))
    assert transport.read(URL, 0, 9).data == new[:9]
    assert transport.counts.repeated == 1


@pytest.mark.parametrize(
    ("error", "num_good"), [(OSError(), 0), (SshException(), 1), (error_temp("421"), 1)]
)
def test_a_connection_that_breaks_is_made_again(error, num_good, dropping, transport):
    transport.read(URL, 0, 9)
    dropping.breaks = [None] * num_good + [error]
    assert transport.read(URL, 0, 4_000).data == DATA[:4_000]
    assert transport.counts.repeated == 1
    assert len(dropping.made) == 2
