"""Runs of `pack`, a folder to pack, and what they have written."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from lightning_shards.shards.tar.tar_bytes import read_samples
from lightning_shards.shards.urls import expand_urls
from lightning_shards.tools import pack

NUM_IMAGES = 20


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """A folder of three folders of classes, with names of all kinds."""
    folder = tmp_path_factory.mktemp("photos")
    for label in ("cat", "dog", "a.b"):
        (folder / label).mkdir()
        for number in range(NUM_IMAGES):
            (folder / label / f"{label} {number}.v2%.JPEG").write_bytes(_jpeg(number))
    (folder / "dog" / "deep").mkdir()
    (folder / "dog" / "deep" / "ä.png").write_bytes(b"no image, which nobody checks")
    (folder / "dog" / "deep" / "ä.json").write_bytes(b"{}")
    (folder / ".hidden").write_bytes(b"")
    (folder / "cat" / "README").write_bytes(b"")
    return folder


@pytest.fixture
def run(tmp_path, capsys):
    """Runs the tool; gives its report."""

    def call(*arguments, out="out", processes=1):
        folder = str(tmp_path / out)
        cache = str(tmp_path / "cache")
        common = ["--out", folder, "--processes", str(processes), "--cache-dir", cache, "--json"]
        pack.main([*map(str, arguments), *common])
        captured = capsys.readouterr()
        assert captured.err == ""
        return json.loads(captured.out)

    return call


@pytest.fixture
def refused(tmp_path, refused_by):
    """Runs the tool, which must refuse; gives its one line."""
    return lambda *arguments: refused_by(pack, *arguments, "--out", tmp_path / "out")


def _jpeg(number, size=(48, 32), **options):
    pixels = np.random.default_rng(number).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()


def _contents(folder):
    """All files but hidden ones, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def _samples_of(report, split=""):
    """By key, the fields of the samples that a report names."""
    urls = expand_urls(report["data_sets"][split]["urls"])
    found = {}
    for url in urls:
        for sample in read_samples(url):
            del sample["__url__"]
            key = sample.pop("__key__")
            assert key not in found
            found[key] = sample
    assert len(found) == report["data_sets"][split]["samples"]
    return found


@pytest.fixture(scope="session")
def jpeg():
    """Bytes of an image of noise, by its number."""
    return _jpeg


@pytest.fixture(scope="session")
def contents():
    return _contents


@pytest.fixture(scope="session")
def samples_of():
    return _samples_of
