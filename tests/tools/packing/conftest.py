"""Runs of `pack`, a folder to pack, and what they have written."""

from functools import partial

import pytest

from lightning_shards.shards.patterns import expand_urls
from lightning_shards.shards.tar.tar_streams import read_samples
from lightning_shards.tools import pack
from tests.tools.conftest import jpeg

NUM_IMAGES = 20


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """A folder of three folders of classes, with names of all kinds."""
    folder = tmp_path_factory.mktemp("photos")
    for label in ("cat", "dog", "a.b"):
        (folder / label).mkdir()
        for number in range(NUM_IMAGES):
            (folder / label / f"{label} {number}.v2%.JPEG").write_bytes(jpeg(number, (48, 32)))
    (folder / "dog" / "deep").mkdir()
    (folder / "dog" / "deep" / "ä.png").write_bytes(b"no image, which nobody checks")
    (folder / "dog" / "deep" / "ä.json").write_bytes(b"{}")
    (folder / ".hidden").write_bytes(b"")
    (folder / "cat" / "README").write_bytes(b"")
    return folder


@pytest.fixture
def run(write_by):
    """Runs the tool; gives its report."""
    return partial(write_by, pack)


@pytest.fixture
def refused(tmp_path, refused_by):
    """Runs the tool, which must refuse; gives its one line."""
    return lambda *arguments: refused_by(pack, *arguments, "--out", tmp_path / "out")


def packed_samples(report, split=""):
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
