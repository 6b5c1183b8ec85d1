"""`classes.json` beside the shards that are written, and the last lines of the report."""

import io
import json
import shlex
import shutil

import numpy as np
import pytest

from lightning_shards.tools import info, pack, reshard, verify

CLASSES = {"a.b": 0, "cat": 1, "dog": 2}


@pytest.fixture
def told(tmp_path, capsys):
    """Runs a tool that writes; gives the lines that it prints for people."""

    def call(tool, *arguments, out="out"):
        where = ["--out", tmp_path / out, "--processes", 1, "--cache-dir", tmp_path / "cache"]
        tool.main([*map(str, arguments), *map(str, where)])
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out.splitlines()

    return call


def classes_in(folder):
    return json.loads((folder / "classes.json").read_text())


def test_each_split_has_its_own_copy(run, photos, tmp_path):
    run(photos, "--val-fraction", 0.3)
    texts = [(tmp_path / "out" / split / "classes.json").read_text() for split in ("train", "val")]
    assert texts == [json.dumps(CLASSES, indent=1) + "\n"] * 2
    assert not (tmp_path / "out" / "classes.json").exists()


def test_a_run_that_goes_on_writes_the_same_file(run, photos, tmp_path, contents):
    run(photos, "--max-samples", 25)
    before = contents(tmp_path / "out")
    (tmp_path / "out" / "classes.json").unlink()
    (tmp_path / "out" / "shard-000001.tar").unlink()
    run(photos, "--max-samples", 25)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("text", ['["dog", "cat"]', "{", '{"a.b": 0, "cat": 1}'])
def test_other_classes_are_refused_and_not_overwritten(refused, photos, tmp_path, text):
    (tmp_path / "out" / "val").mkdir(parents=True)
    path = tmp_path / "out" / "val" / "classes.json"
    path.write_text(text)
    message = refused(photos, "--val-fraction", 0.3)
    assert f"{path} is there and does not have the 3 classes" in message
    assert "remove it, or name another folder" in message
    assert path.read_text() == text
    assert not list(tmp_path.rglob("*.tar"))


def test_the_same_classes_in_another_form_are_taken(run, photos, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "classes.json").write_text(json.dumps(list(CLASSES)))
    run(photos)
    assert classes_in(tmp_path / "out") == CLASSES


@pytest.mark.parametrize("tool", [pack, reshard])
def test_what_rewrites_shards_keeps_their_classes(run, told, photos, tmp_path, tool):
    run(photos)
    (tmp_path / "out" / "classes.json").write_text('["a.b", "cat", "dog"]')
    lines = told(tool, tmp_path / "out" / "shard-000000.tar", "--val-fraction", 0.5, out="new")
    assert classes_in(tmp_path / "new" / "train") == CLASSES
    assert classes_in(tmp_path / "new" / "val") == CLASSES
    new = tmp_path / "new"
    expected = f"{new / 'train' / 'classes.json'}, {new / 'val' / 'classes.json'}"
    assert f"3 classes of the field cls: {expected}" in lines


def test_shards_of_other_classes_are_not_put_together(run, photos, tmp_path, capsys):
    run(photos)
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    (tmp_path / "other" / "classes.json").write_text('["dog", "cat", "a.b"]')
    pattern = f"{tmp_path}/out/*.tar::{tmp_path}/other/*.tar"
    with pytest.raises(SystemExit):
        reshard.main([pattern, "--out", str(tmp_path / "new")])
    assert "have different classes: 'a.b' is 0 and 2; read their" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_repair_keeps_the_classes(run, photos, tmp_path, capsys):
    run(photos)
    shard = tmp_path / "out" / "shard-000000.tar"
    data = bytearray(shard.read_bytes())
    data[148:156] = b"\xff" * 8  # the checksum of a header
    shard.write_bytes(data)
    options = ["--processes", "1", "--cache-dir", str(tmp_path / "new"), "--decode", "none"]
    command = [str(shard), "--repair", str(tmp_path / "repaired"), *options]
    with pytest.raises(SystemExit):
        verify.main(command)
    assert classes_in(tmp_path / "repaired") == CLASSES
    (tmp_path / "repaired" / "classes.json").write_text('["x"]')
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        verify.main(command)
    assert ended.value.code == 2
    assert "remove it, or name another folder" in capsys.readouterr().err


# --- the last lines


@pytest.mark.parametrize("more", [[], ["--val-fraction", 0.3, "--max-samples", 25]])
def test_the_last_line_is_a_command_that_works(told, photos, tmp_path, capsys, more):
    last = told(pack, photos, *more, out="it's a ${folder}")[-1]
    program, tool, *arguments = shlex.split(last.removeprefix("next: "))
    assert (program, tool) == ("lightning-shards", "info")
    info.main([*arguments, "--processes", "1", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["samples"] == 61
    assert document["class_names"] == {str(number): name for name, number in CLASSES.items()}


def test_without_classes_the_command_does_not_count_them(told, photos):
    assert not told(pack, photos / "cat", "--no-classes")[-1].endswith("--classes")


def test_tiny_members_are_warned_of_with_their_ratio(told, tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.txt").write_bytes(b"t" * 64)
        (tmp_path / "in" / f"{number}.json").write_bytes(b"1" * 64)
    [note] = [line for line in told(pack, tmp_path / "in", "--no-classes") if "note" in line]
    assert "members take 16.0 times the bytes of their contents (2.0 members a sample" in note
    assert "into one .npy or .safetensors" in note


def test_members_that_fill_their_blocks_are_not_warned_of(told, tmp_path):
    (tmp_path / "in").mkdir()
    np.save(file := io.BytesIO(), np.zeros(1000))
    (tmp_path / "in" / "0.npy").write_bytes(file.getvalue())
    assert not any("note" in line for line in told(pack, tmp_path / "in", "--no-classes"))
