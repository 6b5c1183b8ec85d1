"""`classes.json` beside the shards that are written, and the numbers of the classes."""

import json

import pytest

from lightning_shards.dataprep.listing import number_classes
from lightning_shards.tools import reshard
from tests.tools.packing.conftest import packed_samples

CLASSES = {"a.b": 0, "cat": 1, "dog": 2}


def classes_in(folder):
    return json.loads((folder / "classes.json").read_text())


def test_what_rewrites_shards_keeps_their_classes(run, write_by, photos, tmp_path):
    run(photos)
    (tmp_path / "out" / "classes.json").write_text('["a.b", "cat", "dog"]')
    shard = tmp_path / "out" / "shard-000000.tar"
    assert write_by(reshard, shard, "--val-fraction", 0.5, out="new")["classes"] == 3
    assert classes_in(tmp_path / "new" / "train") == CLASSES
    assert classes_in(tmp_path / "new" / "val") == CLASSES


# --- numbers


def labelled(folder, *labels):
    """A folder of a file for each of these classes."""
    for label in labels:
        (folder / label).mkdir(parents=True)
        (folder / label / "0.txt").write_bytes(label.encode())
    return folder


def numbers_of(samples):
    return {fields["txt"].decode(): int(fields["cls"]) for fields in samples.values()}


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (("9", "100", "-1", "10"), {"-1": 0, "9": 1, "10": 2, "100": 3}),
        (("0.0", "10.0", "2.0", "1.0"), {"0.0": 0, "1.0": 1, "2.0": 2, "10.0": 3}),
        (("9", "10", "b"), {"10": 0, "9": 1, "b": 2}),
    ],
)
def test_other_names_are_in_the_order_of_values_or_letters(labels, classes):
    assert number_classes(labels) == classes


def test_a_split_that_lacks_a_class_may_take_the_numbers_of_another(run, tmp_path):
    run(labelled(tmp_path / "train", "a", "b", "c"), out="data/train")
    given = ("--classes", tmp_path / "data" / "train" / "classes.json")
    report = run(labelled(tmp_path / "val", "a", "c"), *given, out="data/val")
    assert numbers_of(packed_samples(report)) == {"a": 0, "c": 2}
    assert classes_in(tmp_path / "data" / "val") == {"a": 0, "b": 1, "c": 2}
    path = tmp_path / "rows.csv"
    path.write_text("id,label\n0,c\n")
    columns = (path, "--key", "id", "--values", "label=txt", "--class-column", "label")
    assert numbers_of(packed_samples(run(*columns, *given, out="data/test"))) == {"c": 2}


def test_given_numbers_that_do_not_fit_are_refused(refused, tmp_path, photos):
    given = tmp_path / "classes.json"
    assert "classes.json cannot be read; name the" in refused(photos, "--classes", given)
    given.write_text('["a.b"]')
    assert "has no class 'cat'; add what" in refused(photos, "--classes", given)
