"""`lightning-shards info`: numbers that add up."""

import pytest

from lightning_shards.tools import info
from tests.tools.conftest import samples_of


@pytest.fixture
def run(run_here):
    return run_here(info.main)


def test_fields_shards_and_sizes_add_up(run, folder):
    status, document = run(folder / "*.tar")
    samples = {}
    for path in folder.glob("*.tar"):
        samples |= samples_of(path)
    assert status == 0
    assert (document["samples"], document["shards"]) == (9, 2)
    assert document["bytes"] == sum(path.stat().st_size for path in folder.glob("*.tar"))
    for suffix in ("jpg", "cls", "txt"):
        size_bytes = sum(len(fields[suffix]) for fields in samples.values())
        assert document["fields"][suffix] == {"samples": 9, "size_bytes": size_bytes}


def test_classes_are_counted_when_asked_for(run, folder):
    assert run(folder / "*.tar")[1]["classes"] == {}
    counts = {label: {"samples": 3} for label in "012"}
    assert run(folder / "*.tar", "--classes")[1]["classes"] == counts
    texts = {("a cat " * 9).strip(): {"samples": 9}}
    assert run(folder / "*.tar", "--classes", "txt")[1]["classes"] == texts


def test_classes_of_a_field_that_no_sample_has_are_refused(folder, refused_by):
    said = refused_by(info, folder / "*.tar", "--classes", "lable")
    assert "no sample has the field 'lable' that follows --classes; it is one of jpg, cls" in said
