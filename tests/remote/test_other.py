"""File systems of fsspec: what a file's version rests on, and broken connections."""

from ftplib import error_temp
from typing import ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from lightning_shards.remote.transport import RemoteTransport, TransportSettings
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

    def __init__(self, **settings):
        super().__init__(**settings)
        self.is_broken = False
        self.made.append(settings)

    @staticmethod
    def _get_kwargs_from_urls(_):
        return {"username": "me", "password": "p%40ss"}

    def info(self, path, **settings):
        self._use()
        return {"size": len(DATA), "created": None, "uid": 1000, "mtime": 7}

    def cat_file(self, path, start=None, end=None, **settings):
        self._use()
        return DATA[start:end]

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
    Dropping.breaks, Dropping.made = [], []
    yield Dropping
    Dropping.clear_instance_cache()


@pytest.fixture
def transport(dropping):
    settings = TransportSettings({"dropping": {"encoding": "latin-1"}}, policy=QUICK)
    return RemoteTransport(settings, sleep=lambda _: None)


def test_options_and_what_a_url_says_reach_the_file_system(dropping, transport):
    transport.read(URL, 0, 9)
    (made,) = dropping.made
    assert made["encoding"] == "latin-1"
    assert (made["username"], made["password"]) == ("me", "p@ss")


@pytest.mark.parametrize(
    ("error", "num_good"), [(OSError(), 0), (SshException(), 1), (error_temp("421"), 1)]
)
def test_a_connection_that_breaks_is_made_again(error, num_good, dropping, transport):
    transport.read(URL, 0, 9)
    dropping.breaks = [None] * num_good + [error]
    assert transport.read(URL, 0, 4_000).data == DATA[:4_000]
    assert transport.counts.repeated == 1
    assert len(dropping.made) == 2
