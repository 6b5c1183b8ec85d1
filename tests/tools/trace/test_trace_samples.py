"""`trace --samples` writes the members as they are, where it was told to, only."""

import io
import tarfile

import pytest

from tests.tools.trace.conftest import SPLITS, rows_in


def members_of(url):
    with tarfile.open(url) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


@pytest.mark.parametrize("name", ["resampled stream", "shuffled indexed", "padded"])
def test_samples_are_the_members_as_they_are(name, folder, write_config, traced, tmp_path):
    target = tmp_path / "new" / "folder"
    config = write_config(SPLITS[name])
    steps = traced(config, steps="3:5", more=["--samples", str(target)])["steps"]
    expected = {}
    for step, (rank, rows) in ((s["step"], each) for s in steps for each in enumerate(s["ranks"])):
        for number, row in enumerate(rows):
            members = members_of(folder / f"shard-{row['shard']:06d}.tar")
            for suffix in ("png", "cls"):
                name = f"{step}-{rank}-{number}-{row['key']}.{suffix}"
                expected[name] = members[f"{row['key']}.{suffix}"]
    assert {path.name: path.read_bytes() for path in target.iterdir()} == expected


def write_tar(path, names):
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"7"))


HOSTILE = ["../../up", "/etc/root", "a/b", "a\\b", "new\nline", "\udcff", "k" * 3000, "é"]


def test_names_of_keys_lead_nowhere(write_config, traced, tmp_path):
    url, target = tmp_path / "hostile.tar", tmp_path / "deep" / "er" / "target"
    write_tar(url, [*(f"{key}.cls" for key in HOSTILE), "x.c\\..\\ls", "y..cls"])
    config = write_config({"val": {"urls": str(url)}}, trainer={"devices": 1}, batch_size=20)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    rows = rows_in(traced(config, more=["--split=val", "--samples", str(target)]))[0][0]
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert {row[0] for row in rows} >= set(HOSTILE)
    assert {path.parent for path in written} == {target}
    assert len(written) == len(rows) == len(HOSTILE) + 2
    assert all(".." not in path.name for path in written)


def test_repeated_keys_are_kept_apart(write_config, traced, tmp_path):
    for shard in range(2):
        write_tar(tmp_path / f"same-{shard}.tar", ["key.cls"])
    config = write_config({"val": {"urls": str(tmp_path / "same-*.tar")}}, trainer={"devices": 1})
    traced(config, more=["--split=val", "--samples", str(tmp_path / "target")])
    names = sorted(path.name for path in (tmp_path / "target").iterdir())
    assert names == ["0-0-0-key.cls", "0-0-1-key.cls"]


def test_no_file_is_overwritten(write_config, traced, fails, tmp_path):
    config, more = write_config(), ["--samples", str(tmp_path / "target")]
    traced(config, more=more)
    assert "is there already" in fails(config, *more)


def test_samples_of_remote_shards_are_refused(write_config, fails, tmp_path):
    remote = {"urls": "http://127.0.0.1:9/a.tar", "dataset_size": 10, "sampling": "resampled"}
    config = write_config({"train": remote})
    message = fails(config, "--samples", str(tmp_path / "target"))
    assert "some shards are remote and streamed; put member tables beside them" in message
    assert not (tmp_path / "target").exists()
