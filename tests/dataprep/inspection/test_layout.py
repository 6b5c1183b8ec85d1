"""Where headers are, and what is in no sample: as `tarfile` sees it, in tars of every kind."""

import io
import os
import shutil
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.dataprep.inspection.layout import lay_out
from lightning_shards.shards.members import scan_members
from lightning_shards.shards.tar.walk import split_name

FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}


def by_tarfile(path):
    """Header of each member that is in a sample, and names of the others."""
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        inside = [each for each in members if each.isreg() and split_name(each.name)]
        outside = [each for each in members if each not in inside]
        names = [each.name + "/" * each.isdir() for each in outside]  # as they are in the tar
        return [each.offset for each in inside], names, archive.offset


def check(path):
    table = scan_members(path)
    layout = lay_out(table, path)
    headers, outside, end = by_tarfile(path)
    assert layout.headers.tolist() == headers
    assert [each.name for each in layout.passed_over] == outside
    assert layout.end == end
    return layout


@pytest.fixture
def members():
    """Names short and long, a reserved one, one without a field, sizes around a block."""
    names = ["__meta__", "a.cls", "a.jpg", "README", "b.cls", f"{'l' * 200}.txt", "z/c.cls"]
    return [
        (name, b"x" * size) for name, size in zip(names, (0, 1, 511, 512, 513, 7, 0), strict=True)
    ]


@pytest.mark.parametrize("kind", ["gnu", "pax"])
@pytest.mark.parametrize("mtime", [0, 1.5])
def test_headers_are_where_tarfile_sees_them(write_tar, tmp_path, members, kind, mtime):
    path = write_tar(tmp_path / "a.tar", members, tar_format=FORMATS[kind], mtime=mtime)
    layout = check(path)
    assert [each.kind for each in layout.passed_over] == ["reserved name", "name without a field"]


def test_links_and_folders_are_named(write_tar, tmp_path):
    folder, link, hard = (tarfile.TarInfo(name) for name in ("d", "s.cls", "h.cls"))
    folder.type, link.type, hard.type = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
    link.linkname = hard.linkname = "a.cls"
    members = [(folder, b""), ("a.cls", b"1"), (link, b""), ("b.cls", b"2"), (hard, b"")]
    layout = check(write_tar(tmp_path / "a.tar", members))
    assert [each.kind for each in layout.passed_over] == ["folder", "link", "link"]


def test_a_sample_that_is_marked_bad_is_named(write_tar, tmp_path):
    members = [("a.cls", b"1"), ("b.cls", b"2"), ("b.__bad__", b"1"), ("c.cls", b"3")]
    path = write_tar(tmp_path / "a.tar", members)
    found = lay_out(scan_members(path), path).passed_over
    assert [(each.name, each.kind) for each in found] == [
        ("b.cls", "left out by __bad__"),
        ("b.__bad__", "left out by __bad__"),
    ]


def test_a_tar_of_no_sample_has_an_end(write_tar, tmp_path):
    check(write_tar(tmp_path / "none.tar", []))
    check(write_tar(tmp_path / "readme.tar", [("README", b"hello")]))


@pytest.mark.parametrize("odd", [b"1700000000.5", b"-1\0", b"\xff" * 12, b"9" * 12])
@pytest.mark.parametrize("number", [slice(100, 108), slice(136, 148)], ids=["mode", "mtime"])
def test_numbers_that_tarfile_refuses_change_no_layout(write_tar, tmp_path, number, odd):
    """They are in the headers of what is in no sample, in the first, a middle and the last gap."""
    folders = [tarfile.TarInfo(name) for name in ("first", "middle", "last")]
    for folder in folders:
        folder.type = tarfile.DIRTYPE
    first, middle, last = ((folder, b"") for folder in folders)
    members = [first, ("a.cls", b"1"), middle, ("README", b"2"), ("b.cls", b"3"), last]
    path = write_tar(tmp_path / "a.tar", members)
    sound = check(path)
    data = bytearray(path.read_bytes())
    for entry in sound.passed_over:
        header = data[entry.offset : entry.offset + 512]
        header[number] = odd[: number.stop - number.start].ljust(number.stop - number.start, b"\0")
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        data[entry.offset : entry.offset + 512] = header
    path.write_bytes(data)
    layout = lay_out(scan_members(path), path)
    assert layout.headers.tolist() == sound.headers.tolist()
    assert (layout.end, layout.passed_over) == (sound.end, sound.passed_over)
    assert [each.name for each in layout.passed_over] == ["first/", "middle/", "README", "last/"]


@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=posix"], ["--format=ustar"]])
def test_headers_of_gnu_tar(tmp_path, options):
    tree = tmp_path / "tree" / "deep"
    tree.mkdir(parents=True)
    for number in range(5):
        (tree / f"{number}{'n' * 60 * number if 'ustar' not in options[0] else ''}.cls").write_text(
            "1"
        )
    os.link(tree / "0.cls", tree / "0x.cls")
    subprocess.run(
        [shutil.which("tar"), *options, "--sort=name", "-cf", tmp_path / "a.tar", "tree"],
        cwd=tmp_path, check=True, timeout=60,
    )  # fmt: skip
    layout = check(tmp_path / "a.tar")
    assert [each.kind for each in layout.passed_over].count("link") == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a.x", "b.y", "n", "__m__", "p" * 120 + ".x"]), st.integers(0, 1100)
        ),
        max_size=12,
    ),
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from([0, 2.5]),
)
def test_any_mixture_of_members_is_laid_out(tmp_path_factory, drawn, kind, mtime):
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    with tarfile.open(path, "w", format=FORMATS["gnu" if kind == "ustar" else kind]) as archive:
        for number, (name, size) in enumerate(drawn):
            info = tarfile.TarInfo(f"{number}/{name}")
            info.size, info.mtime = size, mtime
            archive.addfile(info, io.BytesIO(bytes(size)))
    check(path)
