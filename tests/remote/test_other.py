"""File systems of fsspec: what a file's version rests on, and broken connections."""

from ftplib import error_temp
from typing import ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from lightning_shards.remote.backend import TransportSettings
from lightning_shards.remote.transport import RemoteTransport
from tests.remote.conftest import QUICK

DATA = np.random.default_rng(0).bytes(5_000)
URL = "dropping://me:p%40ss@host/data/a.tar"


class SshException(Exception):  # noqa: N818 as that of paramiko
    pass


class Dropping(MemoryFileSystem):
    """One file, and connections that break as told and then stay broken, as those of paramiko."""

    protocol = "dropping"
    breaks: ClassVar[list[Exception | None]] = []
    made: ClassVar[list[dict]] = []
    file: ClassVar[list] = [DATA, 7]  # and its time of change
    replaced_by: ClassVar[list] = []

    def __init__(self, **settings):
        super().__init__(**settings)
        self.is_broken = False
        self.made.append(settings)

    @staticmethod
    def _get_kwargs_from_urls(_):
        return {"username": "me", "password": "p%40ss"}

    def info(self, path, **settings):
        self._use()
        data, changed = self.file
        return {"size": len(data), "created": None, "uid": 1000, "mtime": changed}

    def cat_file(self, path, start=None, end=None, **settings):
        self._use()
        data = self.file[0][start:end]
        if self.replaced_by:
            self.file[:] = self.replaced_by.pop()
        return data

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
    Dropping.breaks, Dropping.made, Dropping.replaced_by = [], [], []
    Dropping.file[:] = DATA, 7
    yield Dropping
    Dropping.clear_instance_cache()


@pytest.fixture
def transport(dropping):
    settings = TransportSettings({"dropping": {"encoding": "latin-1"}}, policy=QUICK)
    return RemoteTransport(settings, sleep=lambda _: None)


def test_a_file_that_is_replaced_by_one_of_its_size_while_it_is_read_is_read_again(
    dropping, transport
):
    new = DATA[::-1]
    dropping.replaced_by = [(new, 8)]
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
