"""The walk over the headers of a tar, and long names in it."""

import gzip
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.members import scan_members
from lightning_shards.shards.tar.walk import BLOCK, contradicts, walk_members

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


@settings(max_examples=150, deadline=None)
@given(
    names=st.lists(
        st.text("abA_./", min_size=1, max_size=8)
        | st.sampled_from(["__a__", "a.__key__", "b\n.x", "a.b\n", "d\n/e.f", "a.__bad__", "a.A"])
        | st.sampled_from(["__a__/b.x", "d/__a__", "d/.x", "README", "b.a"]),
        max_size=6,
    ),
    tar_format=st.sampled_from(FORMATS),
)
@example(names=["a.x", "a.__url__"], tar_format=tarfile.USTAR_FORMAT)
@example(names=["a.x", "b", "a.X"], tar_format=tarfile.USTAR_FORMAT)
def test_any_names_make_the_samples_that_webdataset_makes(
    tmp_path_factory, write_tar, webdataset_keys, names, tar_format
):
    path = write_tar(
        tmp_path_factory.getbasetemp() / "names.tar",
        [(name, b"1") for name in names],
        tar_format=tar_format,
    )
    try:
        expected = webdataset_keys(path)
    except ValueError:
        with pytest.raises(DamagedShardError, match=r"two members for the suffix|is reserved"):
            scan_members(path)
    else:
        table = scan_members(path)
        assert list(map(table.key, range(table.num_samples))) == expected


LONG = "folder/" + "".join(chr(ord("a") + number % 26) for number in range(120)) + ".cls"
NAMES = [LONG, f"{'d' * 60}/{'e' * 60}/{'f' * 60}/{'g' * 30}.cls", f"a/{'é' * 30}.cls", "é.cls"]
NAMES += [f"{'x' * 99}.cls", "b.cls", f"{'é' * 80}/0.cls", f"{'h' * 99}/{'i' * 20}.cls"]

TEXTS = st.text(st.sampled_from("ab/.é日\udcff_o"), min_size=1, max_size=40)
LONG_NAMES = st.builds(
    lambda head, filler, tail: f"{head}{filler}{tail}.cls",
    TEXTS,
    st.sampled_from(["", "k" * 60, "k" * 97, "k/" * 50, "é" * 50, "d" * 99 + "/"]),
    TEXTS,
)


def _members(path, url="0.tar"):
    return list(walk_members(Path(path).read_bytes(), url))


# --- writers


@given(name=LONG_NAMES)
@settings(max_examples=100)
@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_tarfile_writes_is_read(tmp_path_factory, write_tar, tar_format, name):
    path = tmp_path_factory.getbasetemp() / "tarfile.tar"
    write_tar(path, [(name, b"1")], tar_format=tar_format)
    (member,) = _members(path)
    with tarfile.open(path) as archive:
        assert member.name == archive.getmembers()[0].name


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar")
@pytest.mark.parametrize("tar_format", ["gnu", "oldgnu", "posix"])
def test_what_the_tar_program_writes_is_read(tmp_path, tar_format):
    for name in NAMES:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text("1")
    command = ["tar", f"--format={tar_format}", "-cf", "0.tar", "-C", "data", *NAMES]
    subprocess.run(command, cwd=tmp_path, check=True, env={"LC_ALL": "C"})
    assert [member.name for member in _members(tmp_path / "0.tar")] == NAMES


def test_what_bsdtar_writes_is_read():
    packed = (Path(__file__).parents[2] / "tools" / "made_by_bsdtar.tar.gz").read_bytes()
    members = list(walk_members(gzip.decompress(packed), "0.tar"))
    assert sum(not member.name.isascii() for member in members) == 2


@given(name=LONG_NAMES.map(lambda name: name.encode("utf-8", "surrogateescape")))
@example(b"d/" + b"e" * 160 + b"/" + b"f" * 120 + b".cls")
@example(b"f" * 300)
def test_the_forms_of_other_writers_pass(name):
    letters = name.decode("utf-8", "surrogateescape")
    ascii_only = name.decode("ascii", "ignore").encode()
    normal = b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))
    fields = [
        name[:100],
        name[:99],
        name[: len(letters[:33].encode("utf-8", "surrogateescape"))],  # cut before a letter
        letters.encode("ascii", "replace")[:100],
        letters.replace("?", "_").encode("latin-1", "replace")[:100].replace(b"?", b"_"),
        ascii_only[:100],
        ascii_only[:99].rstrip(b"/"),
        normal[:98],
        b"PaxHeader",
        b"",
    ]
    for field in fields:
        assert not contradicts(name, field), field


# --- damage


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_flipped_bit_of_what_a_header_repeats_is_found(tmp_path, write_tar, tar_format):
    path = write_tar(tmp_path / "0.tar", [(LONG, b"1")], tar_format=tar_format)
    archive = path.read_bytes()
    start = archive.index(LONG.encode())
    repeated = archive.index(LONG[:100].encode(), start + len(LONG)) % BLOCK
    assert repeated == 0
    for byte in range(start, start + 100):
        for bit in range(8):
            data = bytearray(archive)
            data[byte] ^= 1 << bit
            with pytest.raises(DamagedShardError):
                list(walk_members(bytes(data), "0.tar"))
    path.write_bytes(data)
    with pytest.raises(DamagedShardError, match=r"extended header says .*fetch or write this"):
        scan_members(path)


def test_a_keyword_with_a_flipped_bit_does_not_cut_a_name(tmp_path, write_tar):
    path = write_tar(tmp_path / "0.tar", [(f"class=1/{LONG}", b"1")], tar_format=tarfile.PAX_FORMAT)
    whole = path.read_bytes()
    start = whole.index(b"path=")
    for byte in range(start, start + 5):
        for bit in range(8):
            data = bytearray(whole)
            data[byte] ^= 1 << bit
            with pytest.raises(DamagedShardError, match="damaged PAX header"):
                list(walk_members(bytes(data), "0.tar"))
