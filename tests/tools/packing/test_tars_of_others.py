"""`pack` and `reshard` of tars by other programs: nothing of a sample is lost without a word."""

import gzip
import io
import tarfile

import pytest

from lightning_shards.shards.tar.tar_streams import read_samples
from lightning_shards.tools import index, info, pack, reshard, verify


@pytest.fixture
def write(write_by):
    """Runs the tool; gives its report and the samples that it wrote."""

    def call(path):
        report = write_by(reshard, path)
        found = {}
        for sample in read_samples(report["data_sets"][""]["urls"]):
            del sample["__url__"]
            found[sample.pop("__key__")] = sample
        return report, found

    return call


def entry(name, kind=tarfile.REGTYPE, target="", data=b""):
    """A member of a tar, and its data."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, target, len(data)
    return member, data


def tar(path, *entries, form=tarfile.USTAR_FORMAT):
    with tarfile.open(path, "w", format=form) as archive:
        for member, data in entries:
            archive.addfile(member, io.BytesIO(data))
    return path


def test_links_and_special_files_are_counted(write, tmp_path, run_json):
    path = tar(
        tmp_path / "in.tar",
        entry("d", tarfile.DIRTYPE),
        entry("0.cls", data=b"7"),
        entry("latest", tarfile.SYMTYPE, "0.cls"),
        entry(".0.cls", tarfile.LNKTYPE, "0.cls"),
        entry("1.cls", tarfile.FIFOTYPE),
        entry("2.cls", tarfile.CHRTYPE),
        entry("3.cls", tarfile.BLKTYPE),
    )
    report, found = write(path)
    assert found == {"0": {"cls": b"7"}}
    assert report["in_no_sample"] == 5
    status, told = run_json(info.main, [path, "--cache-dir", tmp_path / "cache"])
    assert status == 0
    [found] = [each for each in told["findings"] if each["rule"] == "passed over"]
    assert found["count"] == 5


@pytest.mark.parametrize("tool", [pack, reshard, verify, index])
def test_a_compressed_tar_is_refused_with_its_remedy(tool, tmp_path, capsys):
    path = tmp_path / "in.tar.gz"
    path.write_bytes(
        gzip.compress(tar(tmp_path / "in.tar", entry("0.cls", data=b"7")).read_bytes())
    )
    out = ["--out", str(tmp_path / "out")] if tool in (pack, reshard) else []
    with pytest.raises(SystemExit):
        tool.main([str(path), "--processes", "1", "--cache-dir", str(tmp_path / "cache"), *out])
    said = "".join(capsys.readouterr())
    assert f"{path} is compressed (" in said
    assert "shards are plain tars, at byte 0; unpack it (gunzip, bunzip2, unxz or zstd -d)" in said
    assert not (tmp_path / "out").exists()


# --- hidden files


@pytest.mark.parametrize("folder", ["", "./", "train/", "./train/x/", "a.b/"])
def test_what_macos_adds_is_left_out_and_counted(write, tmp_path, folder):
    names = [".DS_Store", "._0001.jpg", "0001.jpg", "._0001.cls", "0001.cls", "._.x.y"]
    entries = [entry(f"{folder}{name}", data=name.encode()) for name in names]
    report, found = write(tar(tmp_path / "in.tar", *entries))
    assert found == {f"{folder}0001": {"jpg": b"0001.jpg", "cls": b"0001.cls"}}
    assert report["in_no_sample"] == 4
