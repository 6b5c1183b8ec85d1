"""Shards, archives and programs for all tests, and how long hypothesis may search.

What archives hold is also said by two oracles: `tarfile` and webdataset's reader.

What needs torch is imported by the fixtures that need it, because CI also runs the tests under
versions of Python that have none (`.ci/test_under`).
"""

import io
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import numpy as np
import pytest
from forked_programs import ForkedPrograms
from PIL import Image
from webdataset.tariterators import group_by_keys, tar_file_expander
from webdataset.writer import TarWriter

from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.shards import tables
from lightning_shards.shards.counts import load_index
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import scan_members

if TYPE_CHECKING:
    from lightning_shards.readers.stream import StreamSource

with suppress(ModuleNotFoundError):
    import torch

    torch.set_num_threads(1)  # networks of tests are small; several threads would wait for a core

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of what a shell runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # programs of tests would inherit it

os.environ.pop("PYTHONUNBUFFERED", None)  # it cuts lines that several processes write to one pipe

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.register_profile("few", deadline=None, derandomize=True, max_examples=10)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=20_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

TESTS = Path(__file__).parent
# No worker of pytest-xdist is left alone with one of them at the end.
LONGEST_FIRST = [
    TESTS / name
    for name in (
        "ray/test_actors.py",
        "ddp_kill/test_chains.py",
        "elastic/test_agents.py",
        "trainer/test_all_options.py",
        "workers/test_all_pools.py",
        "ddp/test_ends.py",
        "ddp/test_a_fit.py",
        "test_examples.py",
    )
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take long begin first; `--no-loadscope-reorder` keeps xdist to this order."""
    numbers = {path: number for number, path in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: numbers.get(item.path, len(numbers)))


def pack(folder: Path, counts: Sequence[int], prefix: str = "shard") -> list[str]:
    """Shards with `counts` samples each: a 4x4 gray PNG of one value, and a class.

    Sample number i of the whole data set has the key f"{i:06d}", the pixel value i % 256 and the
    class i % 10.
    """
    folder.mkdir(parents=True, exist_ok=True)
    urls: list[str] = []
    number = 0
    for shard, count in enumerate(counts):
        urls.append(str(folder / f"{prefix}-{shard:06d}.tar"))
        with TarWriter(urls[-1]) as writer:
            for _ in range(count):
                png = io.BytesIO()
                Image.fromarray(np.full((4, 4), number % 256, np.uint8)).save(png, "PNG")
                label = str(number % 10)
                writer.write({"__key__": f"{number:06d}", "png": png.getvalue(), "cls": label})
                number += 1
    return urls


@pytest.fixture
def pack_shards(tmp_path):
    """Packs shards into this test's own folder: `pack_shards([5, 9, 3])` gives their paths."""

    def packed(counts, prefix="shard"):
        return pack(tmp_path / "shards", counts, prefix)

    return packed


@pytest.fixture(scope="session")
def pack_into():
    """Packs shards into a given folder, for fixtures that outlive a test: `pack` itself."""
    return pack


def _make_source(
    urls: Sequence[str],
    *,
    sampling: str = "resampled",
    samples: int | None = None,
    batch_size: int = 2,
    remainder: str = "drop",
    pinned: bool = False,
    counted: bool = True,
    fields: dict[str, str] | None = None,
    decode: dict[str, str] | None = None,
    allow_unsafe: Sequence[str] = (),
    **others: object,
) -> "StreamSource":
    from lightning_shards.readers.recipe import Recipe
    from lightning_shards.readers.stream import StreamSource
    from lightning_shards.samples.fields import make_fields

    counts = np.array([scan_members(url).num_samples for url in urls]) if counted else None
    total = samples if counts is None else samples or int(counts.sum())
    made = make_fields(fields or {"label": "cls"}, decode or {}, frozenset(allow_unsafe))
    of_recipe = {"transforms", "sample_transforms", "shuffle_buffer", "stages"} & {*others}
    recipe = Recipe(made, **{name: others.pop(name) for name in of_recipe})
    return StreamSource(
        index=ShardIndex(tuple(urls), counts),
        epochs=EpochSchedule(total, batch_size, remainder, pinned=pinned),
        sampling=sampling,
        recipes=(recipe,),
        **{"seed": 0} | others,
    )


@pytest.fixture(scope="session")
def make_source():
    """Makes a source of steps of two labels; each setting of it or of its pipeline can be given."""
    return _make_source


@contextmanager
def _started(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # several threads would wait for a core
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="session")
def start_program():
    """Starts a program in a folder: `with start_program(command, folder) as process`.

    It is in a session of its own; nothing of it, nor of what it started, is left afterwards.
    """
    return _started


@pytest.fixture(scope="session")
def forked_programs():
    """Runs programs that need not import Lightning: `forked_programs.run([SCRIPT], folder)`."""
    import lightning  # noqa: F401 it fails here, and not in a program, where there is none

    programs = ForkedPrograms()
    yield programs
    assert programs.close() == ""


@pytest.fixture
def open_files(tmp_path):
    """Lists the files below a folder (`tmp_path`) that this process has open.

    To count all descriptors would count also those that other tests leave to the garbage collector.
    """
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("lists open files by /proc")

    def listed(folder=tmp_path):
        found = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
        return sorted(path for path in found if path.startswith(f"{folder}/"))

    return listed


@pytest.fixture
def held_fork_server(monkeypatch):
    """One fork server for all tests with this; each fit that starts its own costs half a second."""
    from lightning_shards.workers.fork_server import fork_server

    fork_server.start(["numpy", "torch", "lightning_shards.workers.worker"])
    monkeypatch.setattr(fork_server, "end_unused", lambda: None)


def _write_tar(path, members, *, tar_format=tarfile.USTAR_FORMAT, mtime=0):
    """A tar of (name, data) pairs; a `TarInfo` in place of the name is written as it is."""
    with tarfile.open(path, "w", format=tar_format) as archive:
        for member, data in members:
            info = member
            if isinstance(member, str):
                info = tarfile.TarInfo(member)
                info.mtime = mtime
            if info.isreg():
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def _tarfile_members(path):
    """Name, offset and size of the regular members of a tar as `tarfile` finds them."""
    with tarfile.open(path) as archive:
        return [(m.name, m.offset_data, m.size) for m in archive if m.isreg()]


def _webdataset_keys(path):
    """The keys of the samples that webdataset yields from a tar."""
    with Path(path).open("rb") as stream:
        files = tar_file_expander([{"url": str(path), "stream": stream}])
        return [sample["__key__"] for sample in group_by_keys(files)]


@pytest.fixture(scope="session")
def write_tar():
    return _write_tar


@pytest.fixture(scope="session")
def tarfile_members():
    return _tarfile_members


@pytest.fixture(scope="session")
def webdataset_keys():
    return _webdataset_keys


@pytest.fixture
def write_shards(tmp_path):
    """A folder of shards with these numbers of samples, each sample a `cls` and a `txt`."""

    def write(counts, folder=tmp_path):
        folder.mkdir(exist_ok=True, parents=True)
        urls = []
        for shard, samples in enumerate(counts):
            members = [
                (f"{shard}-{sample}.{suffix}", b"1")
                for sample in range(samples)
                for suffix in ("cls", "txt")
            ]
            urls.append(str(_write_tar(folder / f"{shard:03d}.tar", members)))
        return urls

    return write


@pytest.fixture
def load(tmp_path):
    """`load_index` with a cache folder of this test."""

    def call(urls, **options):
        return load_index(urls, cache=CacheFolder(tmp_path / "cache"), **options)

    return call


@pytest.fixture
def forbid_scans(monkeypatch):
    """Once called, no shard may be scanned any more."""

    def forbid():
        monkeypatch.setattr(tables, "scan_members", lambda url, **_: pytest.fail(f"scanned {url}"))

    return forbid


@pytest.fixture
def make_module(tmp_path):
    """Makes a module that keeps counts in this test's own folder."""

    from lightning_shards import LoaderConfig, ShardDataModule

    def make(train=None, *, loader=LoaderConfig(), **settings):  # noqa: B008 frozen
        loader = replace(loader, cache_dir=str(tmp_path / "cache"))
        defaults = {"fields": {"label": "cls"}, "num_workers": 0, "batch_size": 2}
        return ShardDataModule(train, loader=loader, **defaults | settings)

    return make
