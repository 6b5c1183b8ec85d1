"""`pack` and `reshard` of tars by other programs: nothing of a sample is lost without a word."""

import gzip
import tarfile

import pytest

from lightning_shards.tools import index, info, pack, reshard, verify
from tests.tools.conftest import write_members
from tests.tools.packing.conftest import packed_samples


def test_links_and_special_files_are_counted(write_by, tmp_path, run_json):
    path = write_members(tmp_path / "in.tar", [("0.cls", b"7")])
    kinds = {"d": tarfile.DIRTYPE, "latest": tarfile.SYMTYPE, ".0.cls": tarfile.LNKTYPE}
    kinds |= {"1.cls": tarfile.FIFOTYPE, "2.cls": tarfile.CHRTYPE, "3.cls": tarfile.BLKTYPE}
    with tarfile.open(path, "a", format=tarfile.USTAR_FORMAT) as archive:
        for name, kind in kinds.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "0.cls"
            archive.addfile(member)
    report = write_by(reshard, path)
    assert packed_samples(report) == {"0": {"cls": b"7"}}
    assert report["in_no_sample"] == 5
    status, told = run_json(info.main, [path, "--cache-dir", tmp_path / "cache"])
    [found] = told["findings"]
    assert (status, found["rule"], found["count"]) == (0, "passed over", 5)


@pytest.mark.parametrize("tool", [pack, reshard, verify, index])
def test_a_compressed_tar_is_refused_with_its_remedy(tool, tmp_path, capsys):
    path = tmp_path / "in.tar.gz"
    plain = write_members(tmp_path / "in.tar", [("0.cls", b"7")])
    path.write_bytes(gzip.compress(plain.read_bytes()))
    out = ["--out", str(tmp_path / "out")] if tool in (pack, reshard) else []
    with pytest.raises(SystemExit):
        tool.main([str(path), "--processes", "1", "--cache-dir", str(tmp_path / "cache"), *out])
    said = "".join(capsys.readouterr())
    assert f"{path} is compressed (" in said
    assert "shards are plain tars, at byte 0; unpack it (gunzip, bunzip2, unxz or zstd -d)" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("folder", ["", "./train/x/", "a.b/"])
def test_what_macos_adds_is_left_out_and_counted(write_by, tmp_path, folder):
    names = [".DS_Store", "._0001.jpg", "0001.jpg", "._0001.cls", "0001.cls", "._.x.y"]
    members = [(f"{folder}{name}", name.encode()) for name in names]
    report = write_by(reshard, write_members(tmp_path / "in.tar", members))
    assert packed_samples(report) == {f"{folder}0001": {"jpg": b"0001.jpg", "cls": b"0001.cls"}}
    assert report["in_no_sample"] == 4
