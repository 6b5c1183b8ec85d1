"""Evaluation sets on the command line: a file makes them, options change them."""

from typing import Any

import pytest

from lightning_shards import ShardCLI, SplitConfig

WEB = SplitConfig("w.tar", batch_size=4)
HAND = SplitConfig("h.tar")


@pytest.fixture
def sets(config):
    """The section `data` with two sets, or with these."""
    del config["data"]["val"]
    both = {"web": {"urls": "w.tar", "batch_size": 4}, "by-hand": "h.tar"}
    return lambda given=both: config["data"] | {"val_sets": given}


def sets_of(cli: ShardCLI) -> dict[str, SplitConfig]:
    splits: dict[str, Any] = cli.datamodule.splits
    return {name: split for name, split in splits.items() if split and name.startswith("val")}


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ([], {}),
        (["--data.val_sets.web.batch_size=8"], {"web": SplitConfig("w.tar", batch_size=8)}),
        (["--data.val_sets.web=x.tar"], {"web": SplitConfig("x.tar", batch_size=4)}),
        (["--data.val_sets.web=[x, y]"], {"web": SplitConfig(["x", "y"], batch_size=4)}),
        (
            ["--data.val_sets.by-hand.sampling=shuffled"],
            {"by-hand": SplitConfig("h.tar", sampling="shuffled")},
        ),
    ],
)
def test_options_change_one_set_and_leave_the_others(options, changed, make_cli, sets):
    wanted = {"web": WEB, "by-hand": HAND} | changed
    found = sets_of(make_cli(*options, data=sets()))
    assert found == {f"val/{name}": split for name, split in wanted.items()}
    assert list(found) == ["val/web", "val/by-hand"]


@pytest.mark.parametrize(
    "text", ["data:\n  val: a.tar\n  val: b.tar\n", "data: {val: a, val: b}\n"]
)
def test_a_key_that_is_twice_in_a_file_is_refused(text, refused, tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text(text)
    assert "found duplicate key val in" in refused("--config", str(path))
