"""`trace` gives each sample the number and the name of its class, where names are known."""

import json

import pytest

from lightning_shards.tools import trace
from tests.tools.trace.conftest import SPLITS, rows_in

NAMES = [f"class {number}" for number in range(10)]


def labels_in(document):
    """The labels of the rows; the class of a sample is the last digit of its key."""
    rows = [row for step in document["steps"] for rank in step["ranks"] for row in rank]
    expected = [f"{row['key'][-1]} class {row['key'][-1]}" for row in rows]
    return [row["classes"]["label"] for row in rows], expected


@pytest.mark.parametrize("name", ["resampled stream", "shuffled indexed"])
def test_names_that_the_settings_give_are_told(name, write_config, traced):
    classes = {"decode": {"label": "class"}, "classes": {"label": NAMES}}
    labels, expected = labels_in(traced(write_config(SPLITS[name], **classes), steps="0:2"))
    assert labels == expected


def test_names_beside_the_shards_are_told(write_config, traced, tmp_path, pack_into, capsys):
    pack_into(tmp_path, [4, 4])
    (tmp_path / "classes.json").write_text(json.dumps(NAMES))
    splits = {"train": {"urls": str(tmp_path / "*.tar"), "sampling": "shuffled"}}
    for decode in ({}, {"label": "class"}):
        config = write_config(splits, decode=decode)
        labels, expected = labels_in(traced(config))
        assert labels == expected
    trace.main(["--config", str(config), "--epoch", "0", "--steps", "0:1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "rank", "row", "shard", "sample", "label", "key"]
    assert [line.split("  ")[-2:-1] for line in lines[1:]] == [[label] for label in expected]


def test_without_names_rows_are_as_ever(write_config, traced):
    document = traced(write_config(SPLITS["shuffled indexed"]))
    assert rows_in(document)
    assert document["steps"][0]["ranks"][0][0].keys() == {"key", "shard", "sample"}
