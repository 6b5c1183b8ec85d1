"""`lightning-shards info`: numbers that add up."""

import tarfile

import pytest

from lightning_shards.tools import info
from tests.tools.conftest import samples_of, write_samples

COUNTS = [4, 6, 2]


@pytest.fixture
def folder(tmp_path):
    return write_samples(tmp_path / "data", COUNTS)


@pytest.fixture
def run(run_here):
    return run_here(info.main)


def test_fields_shards_and_sizes_add_up(run, folder):
    status, document = run(folder / "*.tar")
    samples = {}
    for path in folder.glob("*.tar"):
        samples |= samples_of(path)
    assert status == 0
    assert (document["samples"], document["shards"]) == (12, 3)
    assert document["bytes"] == sum(path.stat().st_size for path in folder.glob("*.tar"))
    assert document["samples_per_shard"] == {"least": 2, "median": 4, "most": 6}
    assert document["example_keys"] == ["00000", "00003", "00011"]
    for suffix in ("jpg", "cls", "txt"):
        sizes = [len(fields[suffix]) for fields in samples.values()]
        field = document["fields"][suffix]
        assert (field["samples"], field["bytes"]) == (12, sum(sizes))
        assert (field["least"], field["most"]) == (min(sizes), max(sizes))
        assert field["mean"] == sum(sizes) / 12


def test_no_byte_of_a_large_member_is_read(run, tmp_path):
    header = tarfile.TarInfo("0.bin")
    header.size = 1 << 40
    with (tmp_path / "0.tar").open("wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.truncate(512 + header.size + 1024)  # the rest is a hole
    field = run(tmp_path / "0.tar")[1]["fields"]["bin"]
    assert field["most"] == 1 << 40


def test_classes_are_counted_when_asked_for(run, folder):
    assert run(folder / "*.tar")[1]["classes"] == {}
    assert run(folder / "*.tar", "--classes")[1]["classes"] == {"0": 4, "1": 4, "2": 4}
    assert run(folder / "*.tar", "--classes", "txt")[1]["classes"] == {("a cat " * 9).strip(): 12}


@pytest.mark.parametrize("order", ["misspelt", "a shard"])
def test_classes_of_a_field_that_no_sample_has_are_refused(folder, tmp_path, capsys, order):
    shards = sorted(map(str, folder.glob("*.tar")))
    arguments = [*shards, "--classes", "lable"] if order == "misspelt" else ["--classes", *shards]
    with pytest.raises(SystemExit) as ended:
        info.main([*arguments, "--cache-dir", str(tmp_path / "cache"), "--processes", "1"])
    assert ended.value.code == 2
    named = arguments[arguments.index("--classes") + 1]
    message = f"no sample has the field {named!r} that follows --classes; it is one of jpg, cls, tx"
    assert message in capsys.readouterr().err


def test_classes_have_names_where_a_file_beside_the_shards_has_them(run, folder, tmp_path, capsys):
    assert run(folder / "*.tar", "--classes")[1]["class_names"] == {}
    (folder / "classes.json").write_text('["cat", "dog"]')
    assert run(folder / "*.tar", "--classes")[1]["class_names"] == {"0": "cat", "1": "dog"}
    assert run(folder / "*.tar", "--classes", "txt")[1]["class_names"] == {}
    options = ["--cache-dir", str(tmp_path / "cache"), "--processes", "1", "--classes"]
    info.main([str(folder / "*.tar"), *options])
    assert "\n1 dog        4\n" in capsys.readouterr().out
    other = write_samples(tmp_path / "other", [3])
    (other / "classes.json").write_text('["dog"]')
    info.main([str(folder / "*.tar"), str(other / "*.tar"), *options])
    assert "names of classes are not shown: " in capsys.readouterr().err


def test_the_text_for_people_has_the_numbers(folder, tmp_path, capsys):
    options = ["--cache-dir", str(tmp_path / "cache"), "--processes", "1", "--classes"]
    info.main([str(folder / "*.tar"), *options])
    out, error = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert {"shards: 3", "samples: 12", "name samples", "2 4"} <= set(lines)
    assert "samples_per_shard: least 2, median 4, most 6" in lines
    assert any(line.startswith("cls 12 12 bytes 1") for line in lines)
    assert not error  # no progress but on a terminal


def test_a_damaged_shard_is_counted_out_and_named(run, folder):
    path = folder / "train-000000.tar"
    path.write_bytes(path.read_bytes()[:700])
    status, document = run(folder / "*.tar")
    assert (status, document["samples"]) == (1, 8)
    assert [each["rule"] for each in document["findings"]] == ["damaged shard"]
