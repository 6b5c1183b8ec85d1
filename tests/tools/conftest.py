"""Shards to look at, and runs of tools, for the tests of the tools."""

import io
import json
import os
import tarfile
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def jpeg(number, size=(16, 16), **options):
    """An image of noise of its own for each number."""
    draws = np.random.Generator(np.random.Philox(number))
    noise = draws.integers(0, 255, (size[1], size[0], 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "JPEG", **options)
    return out.getvalue()


def write_members(path, members):
    """A tar of (name, data) pairs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def write_samples(folder, counts, prefix="train"):
    """Shards of samples jpg, cls, txt; sample i of all has the key f"{i:05d}" and class i % 3."""
    numbers = count()
    for shard, num_samples in enumerate(counts):
        members = []
        for number in islice(numbers, num_samples):
            fields = {"jpg": jpeg(number), "cls": b"%d" % (number % 3), "txt": b"a cat " * 9}
            members += [(f"{number:05d}.{suffix}", data) for suffix, data in fields.items()]
        write_members(folder / f"{prefix}-{shard:06d}.tar", members)
    return folder


@pytest.fixture
def folder(tmp_path):
    """Two shards of 4 and 5 samples."""
    return write_samples(tmp_path / "data", [4, 5])


def samples_of(path):
    """Key to fields of a tar, as `tarfile` reads it."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            key, _, suffix = member.name.partition(".")
            found.setdefault(key, {})[suffix] = archive.extractfile(member).read()
    return found


def members_of(path):
    """The members of a tar, as `tarfile` lists them."""
    with tarfile.open(path) as archive:
        return archive.getmembers()


def flip(path, byte):
    """Change a byte, which neither size nor time tell, as on a disk that rots."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def seen(folder):
    """What readers see of a folder: all files that are not hidden."""
    files = contents(folder).items()
    return {name: data for name, data in files if not Path(name).name.startswith(".")}


def contents(folder):
    """All files of a folder and what is in them, hidden ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def write_config(tmp_path):
    """Writes a configuration of LightningCLI (JSON is YAML) with these settings of the data."""

    def write(train, trainer=None, **settings):
        data = {"train": train, "fields": {"label": "cls"}, "batch_size": 2, "num_workers": 0}
        data |= {"loader": {"cache_dir": str(tmp_path / "cache")}} | settings
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps({"trainer": trainer or {}, "data": data}))
        return path

    return write


@pytest.fixture
def run_json(capsys):
    """Runs a tool here: `run_json(main, [...])` gives its exit status and its JSON."""

    def run(main, arguments):
        status = 0
        try:
            main([*map(str, arguments), "--json"])
        except SystemExit as stop:
            status = stop.code
        out = capsys.readouterr().out
        return status, json.loads(out) if out else None

    return run


@pytest.fixture
def run_here(run_json, tmp_path):
    """What runs a tool with a cache of this test's own: `run_here(main)(argument, ...)`."""
    given = ["--cache-dir", tmp_path / "cache", "--processes", 1]
    return lambda main: lambda *arguments: run_json(main, [*given, *arguments])


@pytest.fixture
def write_by(capsys, tmp_path):
    """Runs a tool that writes shards to a folder: gives its report."""

    def run(tool, *arguments, out="out", processes=1):
        common = ["--out", tmp_path / out, "--processes", processes, "--json"]
        common += ["--cache-dir", tmp_path / "cache"]
        tool.main([*map(str, arguments), *map(str, common)])
        captured = capsys.readouterr()
        assert captured.err == ""
        return json.loads(captured.out)

    return run


@pytest.fixture
def refused_by(capsys, tmp_path):
    """Runs a tool here, which must refuse and write no shard: gives its one line."""

    def run(tool, *arguments):
        before, cache = set(tmp_path.rglob("*.tar")), str(tmp_path / "cache")
        with pytest.raises(SystemExit) as ended:
            tool.main([*map(str, arguments), "--processes", "1", "--cache-dir", cache])
        captured = capsys.readouterr()
        assert (ended.value.code, captured.out, captured.err.count("\n")) == (2, "", 1)
        assert set(tmp_path.rglob("*.tar")) == before
        return captured.err

    return run
