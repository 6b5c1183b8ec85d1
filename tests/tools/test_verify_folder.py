"""`verify --repair DIR` writes over nothing that it has not written itself."""

import json
from pathlib import Path

import pytest

from lightning_shards.dataprep.inspection import repairs
from lightning_shards.dataprep.inspection.repairs import repair_place
from lightning_shards.errors import ConfigError
from lightning_shards.tools import verify
from tests.tools.conftest import contents, samples_of, write_samples


@pytest.fixture
def run(run_here):
    return run_here(verify.main)


@pytest.fixture
def refused(run_json, capsys, tmp_path):
    """Runs the tool, which is to leave all as it is; gives what it says."""

    def call(*arguments):
        before = contents(tmp_path)
        with pytest.raises(SystemExit) as ended:
            verify.main([*map(str, arguments), "--processes=1", f"--cache-dir={tmp_path / 'c'}"])
        assert (ended.value.code, contents(tmp_path)) == (2, before)
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    return call


def spoil(path):
    data = bytearray(path.read_bytes())
    data[data.rindex(b".cls")] ^= 1
    path.write_bytes(data)
    return path


@pytest.fixture
def folder(tmp_path):
    """Three shards, of which the second is damaged."""
    folder = write_samples(tmp_path / "data", [3, 3, 3])
    spoil(folder / "train-000001.tar")
    return folder


def test_the_good_shard_of_a_folder_of_the_inputs_is_not_replaced(refused, folder, tmp_path):
    write_samples(tmp_path / "val", [2, 2], prefix="val")
    error = refused(folder / "*.tar", tmp_path / "val" / "*.tar", "--repair", tmp_path / "val")
    assert "val holds shards that are verified" in error


@pytest.mark.parametrize("is_damaged", [True, False])
def test_shards_of_one_name_are_refused_whichever_is_damaged(refused, folder, tmp_path, is_damaged):
    val = write_samples(tmp_path / "val", [3, 3])
    if is_damaged:
        spoil(val / "train-000001.tar")
    error = refused(folder / "*.tar", val / "*.tar", "--repair", tmp_path / "out")
    assert "2 of the shards are named 'train-00000" in error


@pytest.mark.parametrize("name", ["train-000001.tar", "other.tar"])
def test_the_folder_that_links_lead_to_is_refused(refused, folder, tmp_path, name):
    links = tmp_path / "links"
    links.mkdir()
    (links / name).symlink_to(folder / "train-000001.tar")
    assert "data holds shards" in refused(links / "*.tar", "--repair", folder)
    assert "links holds shards" in refused(links / "*.tar", "--repair", links)


def test_a_link_to_the_folder_of_the_shards_is_refused(refused, folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert "link holds shards" in refused(folder / "*.tar", "--repair", tmp_path / "link")


@pytest.mark.parametrize("kind", ["file", "hard link", "dead link"])
def test_what_is_there_already_is_refused(refused, folder, tmp_path, kind):
    target = tmp_path / "out" / "train-000001.tar"
    target.parent.mkdir()
    if kind == "file":
        target.write_bytes(b"mine")
    elif kind == "hard link":
        target.hardlink_to(folder / target.name)
    else:
        target.symlink_to("nowhere")
    error = refused(folder / "*.tar", "--repair", target.parent)
    assert f"{target} is there, and {target.parent / 'repair.json'} does not name it" in error


def test_a_repair_can_be_repeated_also_by_another_name_of_the_shard(
    run, folder, tmp_path, monkeypatch
):
    first = run(folder / "*.tar", "--repair", tmp_path / "out")
    assert run(folder / "*.tar", "--repair", tmp_path / "out") == first
    monkeypatch.chdir(tmp_path)
    assert run("data/*.tar", "--repair", "out")[0] == 1
    assert samples_of(tmp_path / "out" / "train-000001.tar").keys() == {"00003", "00004"}


def test_the_repair_of_another_shard_is_not_replaced(run, refused, folder, tmp_path):
    run(folder / "*.tar", "--repair", tmp_path / "out")
    other = write_samples(tmp_path / "other", [3, 3])
    spoil(other / "train-000001.tar")
    assert "as a repair of" in refused(other / "*.tar", "--repair", tmp_path / "out")


def test_the_report_keeps_what_it_says_of_other_shards(run, folder, tmp_path):
    out = tmp_path / "out"
    first = run(folder / "*.tar", "--repair", out)[1]["repairs"]
    spoil(folder / "train-000002.tar")
    second = run(folder / "train-000002.tar", "--repair", out)[1]["repairs"]
    assert json.loads((out / "repair.json").read_text()) == first | second
    assert len(first | second) == 2
    assert run(folder / "*.tar", "--repair", out)[0] == 1


@pytest.mark.parametrize("content", ["", "[]", '{"a.tar": 1}', '{"a.tar": {"path": "a.tar"}}'])
def test_a_file_of_the_name_of_the_report_is_kept(refused, folder, tmp_path, content):
    out = tmp_path / "out"
    out.mkdir()
    (out / "repair.json").write_text(content)
    assert "is no report of `verify --repair`" in refused(folder / "*.tar", "--repair", out)


def test_a_repair_that_was_killed_can_be_repeated(run, folder, tmp_path, monkeypatch):
    spoil(folder / "train-000002.tar")
    arguments = folder / "*.tar", "--repair", tmp_path / "out"
    saved = []

    def killed(*given, **named):
        if saved:
            raise KeyboardInterrupt
        saved.append(real(*given, **named))
        return saved[-1]

    real = repairs.salvage
    with monkeypatch.context() as patch:
        patch.setattr(repairs, "salvage", killed)
        assert run(*arguments) == (2, None)
    assert contents(tmp_path / "out").keys() == {"train-000001.tar", "repair.json.part"}
    status, document = run(*arguments)
    assert (status, len(document["repairs"])) == (1, 2)
    report = json.loads((tmp_path / "out" / "repair.json").read_text())
    assert report == document["repairs"]
    assert not (tmp_path / "out" / "repair.json.part").exists()


def test_nothing_is_written_where_nothing_is_damaged(run, folder, tmp_path):
    assert run(folder / "train-000000.tar", "--repair", tmp_path / "out")[0] == 0
    assert not (tmp_path / "out").exists()


def test_one_run_at_a_time_holds_the_folder_of_repairs(run, refused, folder, tmp_path):
    out = tmp_path / "out"
    with repair_place([], out):
        assert f"another run is writing to {out}" in refused(folder / "*.tar", "--repair", out)
    assert run(folder / "*.tar", "--repair", out)[0] == 1


def test_the_folder_is_held_from_the_first_shard_to_the_last(run, folder, tmp_path, monkeypatch):
    """Each run adds to the report that it has read, so that another one would be lost from it."""
    out, held = tmp_path / "made" / "out", []

    def during(function):
        def call(*given, **named):
            with pytest.raises(ConfigError, match="another run is writing"), repair_place([], out):
                pass
            held.append(function.__name__)
            return function(*given, **named)

        return call

    monkeypatch.setattr(verify, "check_shards", during(verify.check_shards))
    monkeypatch.setattr(repairs, "salvage", during(repairs.salvage))
    monkeypatch.setattr(verify, "write_classes", during(verify.write_classes))
    assert run(folder / "*.tar", "--repair", out)[0] == 1
    assert held == ["check_shards", "salvage", "write_classes"]


def test_folders_that_were_made_for_nothing_are_removed(run, folder, tmp_path):
    (tmp_path / "there").mkdir()
    out = Path(tmp_path, "there", "made", "out")
    assert run(folder / "train-000000.tar", "--repair", out)[0] == 0
    assert list((tmp_path / "there").iterdir()) == []
