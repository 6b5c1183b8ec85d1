"""File systems of fsspec: what a file's version rests on, and broken connections."""

from ftplib import error_temp
from typing import ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from lightning_shards.errors import IndexMismatchError, StorageError
from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings
from tests.shards.remote.conftest import QUICK

OLD, NEW = (np.random.default_rng(seed).bytes(5_000) for seed in range(2))
FTP_URL = "ftp://me:p%40ss@host/data/a.tar"
DROPPING_URL = "dropping://host/data/a.tar"


class FakeFtp:
    """A client of ftplib: files of a server without a network."""

    files: ClassVar[dict[str, tuple[bytes, str]]] = {}
    replaced_by: ClassVar[list[tuple[bytes, str]]] = []
    made: ClassVar[list[dict]] = []

    def __init__(self, **settings):
        self.made.append(settings)

    def connect(self, host, port):
        self.made[-1]["host"] = host

    def login(self, *user):
        self.made[-1]["user"] = user

    def mlsd(self, path):
        for name, (data, changed) in self.files.items():
            yield name, {"type": "file", "size": str(len(data)), "modify": changed}

    def retrbinary(self, command, blocksize, callback, rest=0):
        data = self.files[command.rpartition("/")[2]][0]
        if self.replaced_by:
            self.files["a.tar"] = self.replaced_by.pop()
        callback(data[rest:])

    def abort(self):
        pass

    getmultiline = close = abort


@pytest.fixture
def ftp(monkeypatch):
    monkeypatch.setattr("fsspec.implementations.ftp.FTP", FakeFtp)
    FakeFtp.files = {"a.tar": (OLD, "20261122200000")}
    FakeFtp.replaced_by, FakeFtp.made = [], []
    return FakeFtp


class SshException(Exception):  # noqa: N818 as that of paramiko
    pass


SshException.__name__ = "SSHException"


class Unknown(Exception):  # noqa: N818
    pass


class Dropping(MemoryFileSystem):
    """One whose connections break as told, and then stay broken, as those of paramiko do."""

    protocol = "dropping"
    breaks: ClassVar[list[Exception | None]] = []
    made: ClassVar[list[object]] = []

    def __init__(self, **settings):
        super().__init__(**settings)
        self.is_broken = False
        self.made.append(self)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("dropping://"))

    def info(self, path, **settings):
        self._use()
        return {**super().info(path, **settings), "created": None, "uid": 1000, "mtime": 7}

    def cat_file(self, path, start=None, end=None, **settings):
        self._use()
        return super().cat_file(path, start, end, **settings)

    def _use(self):
        if self.is_broken:
            raise OSError("Socket is closed")
        error = self.breaks.pop(0) if self.breaks else None
        if error is not None:
            self.is_broken = True
            raise error


@pytest.fixture
def dropping():
    fsspec.register_implementation("dropping", Dropping, clobber=True)
    Dropping.breaks = []
    Dropping().pipe_file("/host/data/a.tar", OLD)
    Dropping.made = []
    yield Dropping
    Dropping().rm_file("/host/data/a.tar")
    Dropping.clear_instance_cache()


@pytest.fixture
def transport():
    made = RemoteTransport(TransportSettings(policy=QUICK), sleep=lambda _: None)
    yield made
    made.close()


@pytest.mark.parametrize("size", [9, 5_000])
def test_a_file_that_is_replaced_by_one_of_its_size_while_it_is_read_is_read_again(
    size, ftp, transport
):
    ftp.replaced_by = [(NEW, "20261122200001")]
    assert transport.read(FTP_URL, 0, size).data == NEW[:size]
    assert transport.counts.repeated == 1


def test_a_file_that_was_replaced_by_one_of_its_size_is_another_version(ftp, transport):
    old = transport.read(FTP_URL, 0, 9)
    ftp.files["a.tar"] = (NEW, "20261122200001")
    with pytest.raises(IndexMismatchError):
        transport.read(FTP_URL, 0, 9, old.version)


def test_user_and_password_of_a_url_are_unescaped_and_reach_the_server(ftp, transport):
    transport.read(FTP_URL, 0, 9)
    assert ftp.made[0]["user"][:2] == ("me", "p@ss")


def test_options_reach_the_file_system_also_those_that_fsspec_takes_for_its_own(ftp):
    settings = TransportSettings({"ftp": {"encoding": "latin-1"}}, policy=QUICK)
    RemoteTransport(settings).read(FTP_URL, 0, 9)
    assert ftp.made[0]["encoding"] == "latin-1"


@pytest.mark.parametrize(
    ("error", "num_good"), [(SshException(), 0), (Unknown(), 1), (error_temp("421"), 0)]
)
def test_a_connection_that_breaks_is_made_anew(error, num_good, dropping, transport):
    transport.read(DROPPING_URL, 0, 9)
    dropping.breaks = [None] * num_good + [error]
    assert transport.read(DROPPING_URL, 0, 4_000).data == OLD[:4_000]
    assert transport.counts.repeated == 1
    assert len(dropping.made) == 2


def test_an_error_that_nobody_knows_is_final_where_no_call_has_worked(dropping, transport):
    dropping.breaks = [Unknown()]
    with pytest.raises(StorageError, match=r"raised Unknown \(try 1 of 10\); .* storage_opt"):
        transport.read(DROPPING_URL, 0, 9)
