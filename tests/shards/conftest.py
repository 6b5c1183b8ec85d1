"""Archives to read, and the oracles of what they hold: `tarfile` and webdataset's reader."""

import io
import tarfile
from pathlib import Path

import pytest
from webdataset.tariterators import group_by_keys, tar_file_expander

from lightning_shards.shards import index


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
        return index.load_index(urls, cache_dir=tmp_path / "cache", **options)

    return call


@pytest.fixture
def forbid_scans(monkeypatch):
    """Once called, no shard may be scanned any more."""

    def forbid():
        monkeypatch.setattr(index, "count_samples", lambda path: pytest.fail(f"scanned {path}"))

    return forbid
