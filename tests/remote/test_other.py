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
