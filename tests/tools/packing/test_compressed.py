"""Compressed tars: `pack` and `reshard` write them as plain shards; all else names that remedy."""

import bz2
import gzip
import io
import json
import lzma
import sys
import tarfile
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from webdataset.writer import TarWriter

from lightning_shards import ConfigError, DamagedShardError, SplitConfig
from lightning_shards.dataprep.writing import rewriting
from lightning_shards.dataprep.writing.plain_copies import COPIES_FOLDER, plain_copies
from lightning_shards.shards.tar.blocks import BLOCK
from lightning_shards.shards.tar.walk import walk_members
from lightning_shards.tools import index, pack, reshard, verify

PACKERS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "tgz": lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]),  # two streams
}
KINDS = {"gz": "gzip", "bz2": "bzip2", "xz": "xz", "tgz": "gzip"}
TOOLS = {"pack": pack, "reshard": reshard}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A folder of three tars of seven samples each, and their classes."""
    folder = tmp_path_factory.mktemp("plain")
    for shard in range(3):
        with TarWriter(str(folder / f"in{shard}.tar")) as writer:
            for number in range(7 * shard, 7 * shard + 7):
                writer.write(
                    {
                        "__key__": f"{number:03d}",
                        "cls": str(number % 2),
                        "bin": bytes([number]) * 999,
                    }
                )
    (folder / "classes.json").write_text(json.dumps({"a": 0, "b": 1}))
    return folder


@pytest.fixture
def packed(plain, tmp_path):
    """Makes a folder with the same tars, compressed."""

    def make(suffix):
        folder = tmp_path / "packed"
        folder.mkdir()
        for tar in plain.glob("*.tar"):
            name = f"{tar.stem}.tgz" if suffix == "tgz" else f"{tar.name}.{suffix}"
            (folder / name).write_bytes(PACKERS[suffix](tar.read_bytes()))
        (folder / "classes.json").write_bytes((plain / "classes.json").read_bytes())
        return folder

    return make


@pytest.fixture
def write(tmp_path, capsys):
    """Runs a tool; gives the files that are in the output folder, hidden ones too, by name."""

    def call(tool, *arguments, out="out", processes=1):
        settings = ("--processes", str(processes), "--cache-dir", str(tmp_path / "cache"))
        TOOLS[tool].main([*map(str, arguments), "--out", str(tmp_path / out), *settings])
        assert capsys.readouterr().err == ""
        files = (path for path in (tmp_path / out).rglob("*") if path.is_file())
        contents = {path.name: path.read_bytes() for path in files}
        contents.pop(".lightning-shards.journal")  # it has the paths and the times of the input
        return contents

    return call


@pytest.fixture
def refused(tmp_path, capsys):
    """Runs a tool, which must refuse; gives its one line. No file may be left."""

    def call(tool, *arguments):
        with pytest.raises(SystemExit) as ended:
            TOOLS[tool].main(
                [*map(str, arguments), "--out", str(tmp_path / "out"), "--processes", "1"]
            )
        assert ended.value.code == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        return captured.err

    return call


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("tool", TOOLS)
def test_compressed_tars_give_the_bytes_of_the_plain_ones(plain, packed, write, tool, suffix):
    options = ["--max-samples", 4, "--order", "shuffled", "--seed", 3]
    expected = write(tool, *sorted(plain.glob("*.tar")), *options, out="expected")
    assert {"classes.json", "wids.json", "shard-000005.tar"} <= expected.keys()
    files = sorted(packed(suffix).glob("in*"))
    assert write(tool, *files, *options, processes=1) == expected


def test_processes_unpack_plain_and_compressed_tars_alike(plain, packed, write):
    expected = write("reshard", *sorted(plain.glob("*.tar")), "--num-shards", 2, out="expected")
    folder = packed("gz")
    mixed = [folder / "in0.tar.gz", plain / "in1.tar", folder / "in2.tar.gz"]
    assert write("reshard", *mixed, "--num-shards", 2, processes=2) == expected


def test_the_kind_is_known_by_the_bytes_and_not_by_the_name(plain, write, tmp_path):
    (tmp_path / "odd.tar").write_bytes(gzip.compress((plain / "in0.tar").read_bytes()))
    expected = write("reshard", plain / "in0.tar", out="expected")
    expected.pop("classes.json")
    assert write("reshard", tmp_path / "odd.tar") == expected


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_tar_that_was_cut_is_named_with_its_last_byte(packed, refused, tmp_path, suffix):
    path = sorted(packed(suffix).glob("in*"))[1]
    data = path.read_bytes()
    for size in {20, len(data) // 2, len(data) - 1}:
        path.write_bytes(data[:size])
        message = refused("reshard", *sorted(path.parent.glob("in*")))
        assert (
            f"{path} is cut short: its {KINDS[suffix]} data has no end, at byte {size}" in message
        )
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_tar_with_a_spoilt_byte_is_named(packed, refused, tmp_path, suffix):
    path = sorted(packed(suffix).glob("in*"))[2]
    noise = np.random.default_rng(0).bytes(9_999)  # in runs of equal bytes it may change nothing
    data = bytearray(PACKERS[suffix](noise))
    data[len(data) // 2] ^= 64
    path.write_bytes(data)
    message = refused("pack", *sorted(path.parent.glob("in*")))
    kind = KINDS[suffix]
    is_damaged = f"{path} is damaged: its {kind} data cannot be unpacked up to here (" in message
    has_no_end = f"{path} is cut short: its {kind} data has no end" in message  # it may look so
    assert is_damaged or has_no_end
    assert "at byte " in message
    assert not (tmp_path / "out").exists()


def test_a_fault_of_the_tar_within_is_told_by_the_name_of_the_compressed_one(
    plain, refused, tmp_path
):
    data = bytearray((plain / "in0.tar").read_bytes())
    header = list(walk_members(bytes(data), ""))[2].offset - BLOCK
    data[header + 3] ^= 1
    path = tmp_path / "bad.tar.gz"
    path.write_bytes(gzip.compress(data))
    message = refused("reshard", path)
    assert f"{path} (unpacked) has a damaged header" in message
    assert f"at byte {header};" in message
    path.write_bytes(gzip.compress((plain / "in0.tar").read_bytes()))
    message = refused("reshard", path, plain / "in0.tar")
    assert f"'000' of {path} (unpacked) and {plain / 'in0.tar'}" in message
    assert not (tmp_path / "out").exists()


def test_repeated_keys_get_the_name_of_the_compressed_tar(plain, write, tmp_path):
    (tmp_path / "other.tar.gz").write_bytes(gzip.compress((plain / "in0.tar").read_bytes()))
    files = [plain / "in0.tar", tmp_path / "other.tar.gz"]
    written = write("reshard", *files, "--duplicate-keys", "prefix")
    assert b"in0/003.cls" in written["shard-000000.tar"]
    assert b"other/003.cls" in written["shard-000000.tar"]


def test_a_run_that_failed_goes_on_with_the_shards_that_it_has(
    packed, write, monkeypatch, tmp_path, capsys
):
    files = [*sorted(packed("gz").glob("in*")), "--max-samples", 7]
    expected = write("reshard", *files, out="expected")
    write_shard, written = rewriting.write_shard, []

    def failing(path, samples):
        if len(written) == 2:
            raise OSError(5, "the disk is gone")
        written.append(path.name)
        return write_shard(path, samples)

    with monkeypatch.context() as patch:
        patch.setattr(rewriting, "write_shard", failing)
        with pytest.raises(SystemExit):
            write("reshard", *files)
    capsys.readouterr()
    assert not (tmp_path / "out" / COPIES_FOLDER).exists()
    assert not (tmp_path / "out" / "wids.json").exists()
    first = (tmp_path / "out" / "shard-000000.tar").stat()
    assert write("reshard", *files) == expected
    assert (tmp_path / "out" / "shard-000000.tar").stat().st_mtime_ns == first.st_mtime_ns


def test_the_copies_are_one_runs_alone(packed, tmp_path):
    files = sorted(map(str, packed("xz").glob("in*")))
    with plain_copies(files, tmp_path / "out") as copies:
        assert list(copies) == files
        with (
            pytest.raises(ConfigError, match=r"^another run is writing to .*out; wait until"),
            plain_copies(files, tmp_path / "out"),
        ):
            pass
        assert all(Path(copy).exists() for copy in copies.values())
    assert not (tmp_path / "out").exists()


def test_nothing_is_made_for_plain_tars(plain, tmp_path):
    with plain_copies([str(plain / "in0.tar")], tmp_path / "out") as copies:
        assert copies == {}
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_unpacking_takes_little_memory(tmp_path, suffix):
    path = tmp_path / f"zeros.tar.{suffix}"
    path.write_bytes(PACKERS[suffix](bytes(48 << 20)))
    tracemalloc.start()
    try:
        with plain_copies([str(path)], tmp_path / "out") as copies:
            peak = tracemalloc.get_traced_memory()[1]
            assert Path(copies[str(path)]).stat().st_size == 48 << 20
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_zstandard_needs_a_python_that_has_it(plain, refused, write, tmp_path, monkeypatch):
    magic = b"\x28\xb5\x2f\xfd"
    path = tmp_path / "a.tar.zst"
    path.write_bytes(magic + (plain / "in0.tar").read_bytes())
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    assert refused("reshard", path) == (
        f"lightning-shards reshard: {path} is compressed (zstandard), which this Python cannot "
        "unpack (3.14 can); unpack it by `zstd -d`, and give the plain tar\n"
    )
    assert not (tmp_path / "out").exists()

    def opened(file):
        assert file.read(4) == magic
        return io.BytesIO(file.read())

    monkeypatch.setitem(sys.modules, "compression", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "compression.zstd", SimpleNamespace(open=opened))
    expected = write("reshard", plain / "in0.tar", out="expected")
    expected.pop("classes.json")
    assert write("reshard", path) == expected


@pytest.mark.parametrize(
    "start", [b"BZhang", b"BZh91AY&SY", b"\x1f\x8b\x08", b"(\xb5/\xfd", b"\xfd7zXZ"]
)
def test_a_plain_tar_may_begin_with_the_name_of_any_file(tmp_path, write, capsys, start):
    folder = start.decode("utf-8", "surrogateescape")
    with tarfile.open(path := tmp_path / "a.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in (f"{folder}/README", "0.cls"):  # of which the first is in no sample
            archive.addfile(tarfile.TarInfo(name))
    for tool in TOOLS:
        assert b"0.cls" in write(tool, path, out=tool)["shard-000000.tar"]
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(SystemExit):
        verify.main([str(path), "--processes", "1", "--cache-dir", str(tmp_path / "cache")])
    assert "is cut short" in capsys.readouterr().out


REMEDY = "is compressed (gzip), and shards are plain tars, at byte 0; `lightning-shards reshard` wr"


@pytest.mark.parametrize("tool", [verify, index])
def test_the_other_tools_name_the_remedy(packed, capsys, tmp_path, tool):
    path = packed("gz") / "in0.tar.gz"
    with pytest.raises(SystemExit):
        tool.main([str(path), "--processes", "1", "--cache-dir", str(tmp_path / "cache")])
    captured = capsys.readouterr()
    assert f"{path} {REMEDY}" in captured.out + captured.err
    assert "--repair" not in captured.out + captured.err  # it saves nothing of such a file


@pytest.mark.parametrize("reader", ["stream", "indexed"])
def test_training_names_the_remedy(packed, make_module, reader):
    path = packed("gz") / "in0.tar.gz"
    split = SplitConfig(str(path), reader=reader, sampling="sequential")
    with pytest.raises(DamagedShardError) as caught:
        list(make_module(split, fields={"label": "cls"}).loader("train"))
    assert f"{path} {REMEDY}ites plain shards from it" in str(caught.value)
