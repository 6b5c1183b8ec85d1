"""`pack` run again: what is whole is kept, what changed is refused; and the command itself."""

import os
import shutil

import pytest

# --- running it again


def test_a_shard_that_is_missing_or_cut_is_written_again(run, photos, tmp_path, contents):
    run(photos, "--max-samples", 9)
    before = contents(tmp_path / "out")
    (tmp_path / "out" / "shard-000002.tar").unlink()
    with (tmp_path / "out" / "shard-000004.tar").open("r+b") as file:
        file.truncate(1024)
    assert run(photos, "--max-samples", 9)["data_sets"][""]["kept_shards"] == 5
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--max-samples", 8), "max_samples was 9 and is now 8"),
        (("--seed", 2), "seed was 0 and is now 2"),
        (("--resize", 8), "resize was None and is now 8"),
        (("--val-fraction", 0.1), "val_fraction was 0.0 and is now 0.1"),
    ],
)
def test_changed_settings_are_refused_by_name(
    run, refused, photos, tmp_path, changed, message, contents
):
    run(photos, "--max-samples", 9)
    before = contents(tmp_path / "out")
    assert message in refused(photos, "--max-samples", 9, *changed)
    assert contents(tmp_path / "out") == before


def test_changed_files_are_refused(run, refused, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "in")
    run(tmp_path / "in")
    os.utime(tmp_path / "in" / "dog" / "deep" / "ä.png", (0, 0))
    assert "digest of the input files was" in refused(tmp_path / "in")


# --- the command
