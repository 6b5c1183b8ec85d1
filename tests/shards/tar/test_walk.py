"""Members and samples are those of Python's `tarfile` and webdataset."""

import tarfile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from webdataset.writer import ShardWriter, TarWriter

from lightning_shards.errors import DamagedShardError, ShardNotFoundError
from lightning_shards.shards.tar.plain_runs import count_samples
from lightning_shards.shards.tar.walk import Member, group_members, split_name, walk_members

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def _special(name, kind):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = "0.txt"
    return info


ARCHIVES = {
    "two suffixes": [("0.cls", b"1"), ("0.jpg", b"x" * 700), ("1.cls", b""), ("1.jpg", b"x" * 512)],
    "folders and dots": [("d/e/0.left.png", b"1"), ("d/e/0.right.png", b"2"), ("d.e/0.x", b"3")],
    "upper case": [("A.JPG", b"1"), ("A.Cls", b"2"), ("a.jpg", b"3")],
    "long names": [("n" * 90 + ".txt", b"1"), ("d" * 80 + "/" + "n" * 80 + ".txt", b"2")],
    "no suffix": [("README", b"1"), ("0.a", b"1"), ("README", b"2"), ("0.b", b"2"), ("d.x/R", b"")],
    "hidden": [(".hidden", b"1"), ("d/.x", b"2"), ("d/..y", b"3"), ("0.", b"4"), ("..a", b"5")],
    "meta": [
        ("__a__", b"1"),
        ("__a__.x", b"2"),
        ("__a__/b.x", b"3"),
        ("d/__a__", b""),
        ("__", b""),
    ],
    "meta-like": [("__a.b__", b"1"), ("__c__d.e__", b"2"), ("__f.g", b"3"), ("h/__i__/j.k", b"4")],
    "bad": [("0.__bad__", b"1"), ("0.x", b"2"), ("1.__bad__", b""), ("1.x", b""), ("2.x", b"")],
    "not adjacent": [("0.a", b"1"), ("1.a", b"1"), ("0.b", b"1"), ("1.b", b"1")],
    "unicode": [("ä.txt", b"1"), ("\udcff.txt", b"2")],
    "special": [
        (_special("dir.x", tarfile.DIRTYPE), b""),
        ("0.txt", b"1"),
        (_special("1.txt", tarfile.SYMTYPE), b""),
        (_special("2.txt", tarfile.LNKTYPE), b""),
        (_special("3.txt", tarfile.FIFOTYPE), b""),
        (_special("4.txt", tarfile.CHRTYPE), b""),
        (_special("5.txt", tarfile.CONTTYPE), b"5"),
        ("0.cls", b"1"),
    ],
    "nothing": [],
}


@pytest.mark.parametrize("mtime", [0, 1.5])
@pytest.mark.parametrize("tar_format", FORMATS)
@pytest.mark.parametrize("members", ARCHIVES.values(), ids=ARCHIVES)
def test_members_and_samples_are_those_of_the_oracles(
    tmp_path, write_tar, tarfile_members, webdataset_keys, members, tar_format, mtime
):
    path = write_tar(tmp_path / "0.tar", members, tar_format=tar_format, mtime=mtime)
    walked = list(walk_members(path.read_bytes(), path.name))
    assert [member[:3] for member in walked] == tarfile_members(path)
    assert [key for key, _ in group_members(walked, "0.tar")] == webdataset_keys(path)
    assert count_samples(path) == len(webdataset_keys(path))


@settings(max_examples=150, deadline=None)
@given(
    names=st.lists(
        st.text("abA_./", min_size=1, max_size=8)
        | st.sampled_from(["__a__", "a.__key__", "b\n.x", "a.b\n", "d\n/e.f", "a.__bad__", "a.A"]),
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
        expected = len(webdataset_keys(path))
    except ValueError:
        with pytest.raises(DamagedShardError, match=r"two members for the suffix|is reserved"):
            count_samples(path)
    else:
        assert count_samples(path) == expected


@pytest.mark.parametrize("tar_format", ["USTAR_FORMAT", "GNU_FORMAT", "PAX_FORMAT", None])
def test_what_webdataset_writes_is_counted(tmp_path, webdataset_keys, tar_format):
    with TarWriter(str(tmp_path / "0.tar"), format=tar_format) as writer:
        for sample in range(20):
            writer.write(
                {"__key__": f"d/{sample:03d}", "cls": sample, "seg.txt": "x" * sample * 50}
            )
    assert count_samples(tmp_path / "0.tar") == len(webdataset_keys(tmp_path / "0.tar")) == 20


def test_each_shard_of_a_shard_writer_is_counted(tmp_path):
    with ShardWriter(str(tmp_path / "%03d.tar"), maxcount=4, verbose=0) as writer:
        for sample in range(10):
            writer.write({"__key__": str(sample), "txt": "x"})
    assert [count_samples(path) for path in sorted(tmp_path.glob("*.tar"))] == [4, 4, 2]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/b.c.D", ("a/b", "c.d")),
        ("a.b/c.d", ("a.b/c", "d")),
        ("a.b/c", None),
        ("a", None),
        ("a.", ("a", "")),
        ("__x__", None),
        ("__x__/a.b", None),
        ("__x.y__", None),
        ("__x__y.z", ("__x__y", "z")),
        ("d/__x__/a.b", ("d/__x__/a", "b")),
    ],
)
def test_names_split_at_the_first_dot_after_the_last_slash(name, expected):
    assert split_name(name) == expected


def test_a_sample_holds_its_members_by_suffix():
    members = [Member("0.A", 512, 1), Member("R", 1536, 1), Member("0.b.c", 2560, 1)]
    assert list(group_members(members, "x")) == [("0", {"a": members[0], "b.c": members[2]})]


def test_a_suffix_twice_in_a_sample_is_an_error_that_names_both():
    members = [Member("a.JPG", 512, 1), Member("a.jpg", 1536, 1)]
    with pytest.raises(DamagedShardError, match=r"'a.JPG' and 'a.jpg', at byte 1536"):
        list(group_members(members, "x.tar"))


def test_a_missing_shard_says_so(tmp_path):
    with pytest.raises(ShardNotFoundError, match=r"0.tar does not exist; check"):
        count_samples(tmp_path / "0.tar")


def test_counting_closes_the_file(tmp_path, write_tar, open_files):
    path = write_tar(tmp_path / "0.tar", [("a.b", b"")])
    count_samples(str(path))
    assert open_files() == []
