"""What `pack` guarantees, in the names of its tests: all files, and the same bytes by every run."""

import io
import json
import os
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest
from PIL import Image

from lightning_shards.tools import pack
from tests.tools.conftest import jpeg, seen
from tests.tools.packing.conftest import packed_samples

# --- folders


def test_every_file_of_a_folder_is_in_one_sample_with_its_class(run, photos, tmp_path):
    report = run(photos, "--max-samples", 25)
    found = packed_samples(report)
    classes = json.loads((tmp_path / "out" / "classes.json").read_text())
    assert classes == {"a.b": 0, "cat": 1, "dog": 2}
    deep = {"png": b"no image, which nobody checks", "json": b"{}", "cls": b"2"}
    assert found.pop("dog/deep/ä") == deep
    for key, fields in found.items():
        path = photos / f"{unquote(key)}.JPEG"
        number = classes[path.parent.name]
        assert fields == {"jpeg": path.read_bytes(), "cls": b"%d" % number}
    assert report["data_sets"][""]["fields"] == {"cls": 61, "jpeg": 60, "json": 1, "png": 1}
    assert (report["read"], report["in_no_sample"], report["classes"]) == (61, 2, 3)


def test_any_number_of_processes_writes_the_same_bytes(run, photos, tmp_path):
    for processes in (1, 2, 4):
        arguments = (photos, "--max-samples", 9, "--val-fraction", 0.2)
        run(*arguments, out=f"by {processes}", processes=processes)
    one, two, four = (seen(tmp_path / f"by {processes}") for processes in (1, 2, 4))
    assert one == two == four
    assert len(one) > 9


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a/x.jpg", "a/x.png"), "one sample with two images"),
        (("a/x.jpg", "a/x.JPG"), "or one member"),
        (("a/x.jpg", "y.jpg"), "beside its folders"),
        (("a/x.jpg", "a/x.cls"), "two members for the field 'cls'"),
        (("a/README",), "no sample"),
    ],
)
def test_folders_that_are_not_clear_are_refused(refused, tmp_path, names, message):
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "in" / name).write_bytes(b"")
    assert message in refused(tmp_path / "in")


@pytest.mark.parametrize("out", [".", "cat/new", "../in/new"])
def test_an_output_below_the_folder_of_the_files_is_refused(
    refused_by, photos, tmp_path, monkeypatch, out
):
    shutil.copytree(photos, tmp_path / "in")
    monkeypatch.chdir(tmp_path / "in")
    said = refused_by(pack, ".", "--out", out)
    assert f"{Path(out)} is in {tmp_path / 'in'}, where samples are read" in said


def test_images_become_smaller(run, tmp_path):
    (tmp_path / "in").mkdir()
    for number, size in enumerate([(48, 32), (16, 12)]):
        (tmp_path / "in" / f"{number}.jpg").write_bytes(jpeg(number, size))
    found = packed_samples(run(tmp_path / "in", "--resize", 16))
    assert Image.open(io.BytesIO(found["0"]["jpg"])).size == (24, 16)
    assert found["1"]["jpg"] == (tmp_path / "in" / "1.jpg").read_bytes()


# --- running it again


def test_a_shard_that_is_missing_or_cut_is_written_again(run, photos, tmp_path):
    run(photos, "--max-samples", 9)
    before = seen(tmp_path / "out")
    (tmp_path / "out" / "shard-000002.tar").unlink()
    with (tmp_path / "out" / "shard-000004.tar").open("r+b") as file:
        file.truncate(1024)
    assert run(photos, "--max-samples", 9)["data_sets"][""]["kept_shards"] == 5
    assert seen(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--max-samples", 8), "max_samples was 9 and is now 8"),
        (("--resize", 8), "resize was None and is now 8"),
    ],
)
def test_changed_settings_are_refused_by_name(run, refused, photos, tmp_path, changed, message):
    run(photos, "--max-samples", 9)
    before = seen(tmp_path / "out")
    assert message in refused(photos, "--max-samples", 9, *changed)
    assert seen(tmp_path / "out") == before


def test_changed_files_are_refused(run, refused, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"1")
    run(tmp_path / "in")
    os.utime(tmp_path / "in" / "a.txt", (0, 0))
    assert "digest of the input files was" in refused(tmp_path / "in")
