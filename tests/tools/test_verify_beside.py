"""`verify` holds local shards against all that lies beside them, and says what it had to go by."""

import hashlib
import json
import os
from contextlib import suppress

import numpy as np
import pytest

from lightning_shards.tools import index, verify
from tests.tools.conftest import samples_of, write_samples

NAMES = ["train-000000.tar", "train-000001.tar"]


@pytest.fixture
def run(run_here):
    return run_here(verify.main)


@pytest.fixture
def folder(tmp_path):
    return write_samples(tmp_path / "data", [2, 3])


def found(document):
    return [
        (each["rule"], each["shard"].rpartition("/")[2])
        for each in document["findings"]
        if each["is_failure"]
    ]


def write_wids(path, entries):
    content = {"wids_version": 1, "shardlist": [{"url": url, **facts} for url, facts in entries]}
    path.write_text(json.dumps(content))


def facts_of(path, **more):
    data = path.read_bytes()
    return {
        "nsamples": len(samples_of(path)),
        "filesize": len(data),
        "md5sum": hashlib.md5(data).hexdigest(),
    } | more


def change(path, what=b"a cat"):
    """Change a byte of a text, which nothing but a checksum shows."""
    data = bytearray(path.read_bytes())
    data[data.rindex(what)] ^= 1
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def stale_counts(folder):
    """A file of each kind that counts the first shard, with a wrong count of it."""
    data = (folder / NAMES[0]).read_bytes()
    end = len(data.rstrip(b"\0")) + -len(data.rstrip(b"\0")) % 512
    counts = json.dumps({"shard_counts": {NAMES[0]: 999}})
    below = json.dumps({"shard_counts": {f"data/{NAMES[0]}": 999}})
    return {
        "sizes.json": json.dumps({NAMES[0]: 999}).encode(),
        "train-000000_stats.json": b'{"successes": 999}',
        "train-000000.tar.idx": np.array([0, end], "<u8").tobytes(),
        "train-000000.idx": b"v1.2 999\n",
        ".nv-meta/.info.json": counts.encode(),
        "../.nv-meta/.info.json": below.encode(),
        "_info.json": json.dumps(
            {"splits": {"a": {"filenames": [NAMES[0]], "shard_lengths": [999]}}}
        ).encode(),
    }


KINDS = [
    "sizes.json",
    "train-000000_stats.json",
    "train-000000.tar.idx",
    "train-000000.idx",
    ".nv-meta/.info.json",
    "../.nv-meta/.info.json",
    "_info.json",
]


@pytest.mark.parametrize("is_counted_right", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_file_that_counts_a_shard_wrongly_is_named(run, folder, kind, is_counted_right):
    if is_counted_right:  # training then reads no other file, and other tools do
        write_wids(folder / "wids.json", [(name, facts_of(folder / name)) for name in NAMES])
    (folder / kind).parent.mkdir(exist_ok=True)
    (folder / kind).write_bytes(stale_counts(folder)[kind])
    status, document = run(folder / "*.tar")
    assert (status, found(document)) == (1, [("stale count", NAMES[0])])
    assert kind.rpartition("/")[2] in document["findings"][0]["message"]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("train-000000.tar.idx", np.array([0, 512, 1024, 1536], "<u8").tobytes()),
        ("train-000000.idx", b"v1.2 999\ncls 512 1 a.cls\n"),
    ],
)
def test_an_index_of_which_no_offset_fits_is_named_by_its_count(
    run, run_json, folder, kind, content
):
    """Training and `index` pass it over, and its own tool reads it."""
    (folder / kind).write_bytes(content)
    status, document = run(folder / "*.tar")
    assert (status, found(document)) == (1, [("stale count", NAMES[0])])
    assert run_json(index.main, [folder / "*.tar", "--processes", 1])[1]["findings"] == []


def older_count(folder, kind, *, is_right):
    """A file of this kind, in a folder of one shard, that counts its 2 samples, or more."""
    if kind.endswith(".tar.idx"):  # it has the offset of each sample, and of the end
        return np.arange(3 if is_right else 1000, dtype="<u8") * 512
    wrong = (stale_counts(folder) | {"__len__": b"999"})[kind]
    return wrong.replace(b"999", b"2") if is_right else wrong


@pytest.mark.parametrize("is_right", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, "__len__"])
def test_a_count_that_is_older_than_its_shard_is_compared_too(run, folder, kind, is_right):
    """Training and `index` pass it over, and its own tool reads it."""
    (folder / NAMES[1]).unlink()  # `__len__` counts all shards of the folder together
    (folder / kind).parent.mkdir(exist_ok=True)
    (folder / kind).write_bytes(older_count(folder, kind, is_right=is_right))
    os.utime(folder / kind, (1, 1))
    status, document = run(folder / "*.tar")
    expected = [] if is_right else [("stale count", NAMES[0])]
    assert (status, found(document)) == (len(expected), expected)
    assert all(kind.rpartition("/")[2] in each["message"] for each in document["findings"])


def test_a_right_count_of_one_tool_does_not_hide_a_wrong_one_of_another(run, folder):
    (folder / "_info.json").write_text(json.dumps({"shard_counts": {NAMES[0]: 2}}))
    (folder / "train-000000_stats.json").write_text('{"successes": 2}')
    (folder / "train-000000.idx").write_bytes(b"v1.2 999\n")
    status, document = run(folder / "*.tar")
    assert (status, found(document)) == (1, [("stale count", NAMES[0])])


@pytest.mark.parametrize("above", ["data/", "./data/", "moved/from/"])
def test_entries_with_folders_are_held_against_the_shards(run, folder, above):
    """webdataset's own tool writes the paths that it was given."""
    facts = [facts_of(folder / name) for name in NAMES]
    entries = [(f"{above}{name}", fact) for name, fact in zip(NAMES, facts, strict=True)]
    write_wids(folder / "wids.json", entries)
    assert run(folder / "*.tar")[0] == 0
    write_wids(folder / "wids.json", [*entries, (f"{above}gone.tar", {"nsamples": 3})])
    change(folder / NAMES[1])
    status, document = run(folder / "*.tar")
    assert status == 1
    assert found(document) == [("changed shard", NAMES[1]), ("missing shard", "gone.tar")]
    assert "md5sum" in document["findings"][0]["message"]


def test_shards_that_an_index_lists_elsewhere_are_not_missing(run, folder):
    entries = [(f"data/{name}", facts_of(folder / name)) for name in NAMES]
    write_wids(folder / "wids.json", [*entries, ("val/000.tar", {"nsamples": 1})])
    assert run(folder / "*.tar")[0] == 0
    for above in ("", "moved/"):  # which of two folders was moved here is unknown
        write_wids(folder / "wids.json", [(f"{above}{NAMES[0]}", {}), ("val/000.tar", {})])
        assert run(folder / "*.tar")[0] == 0


@pytest.mark.parametrize("name", ["a.json", "z.json"])
def test_an_index_without_md5s_does_not_hide_those_of_another(run, folder, name):
    write_wids(folder / "wids.json", [(name, facts_of(folder / name)) for name in NAMES])
    write_wids(folder / name, [(shard, {"nsamples": 3 + (shard != NAMES[1])}) for shard in NAMES])
    change(folder / NAMES[1])
    status, document = run(folder / "*.tar")
    assert (status, sorted(found(document))) == (
        1,
        [("changed shard", NAMES[1]), ("stale count", NAMES[0])],
    )


@pytest.mark.parametrize("value", ["3", -1, [3], True])
def test_a_value_of_a_wrong_type_is_no_right_one(run, folder, value):
    write_wids(folder / "wids.json", [(NAMES[1], facts_of(folder / NAMES[1], nsamples=value))])
    assert found(run(folder / "*.tar")[1]) == [("changed shard", NAMES[1])]


# --- member tables beside local shards


@pytest.fixture
def with_tables(folder, run_json, tmp_path):
    """The folder with member tables beside its shards, made with another cache."""
    arguments = [folder / "*.tar", "--format", "members", "--cache-dir", tmp_path / "other"]
    assert run_json(index.main, [*arguments, "--processes", 1])[0] == 0
    return folder


def test_the_table_beside_a_local_shard_shows_a_changed_byte(run, with_tables, tmp_path):
    original = samples_of(with_tables / NAMES[1])
    change(with_tables / NAMES[1])
    status, document = run(with_tables / "*.tar", "--repair", tmp_path / "out")
    assert (status, found(document)) == (1, [("changed member", NAMES[1])])
    [repair] = document["repairs"].values()
    assert repair["lost"].keys() == {"00004"}
    del original["00004"]
    assert samples_of(repair["path"]) == original


def test_a_table_of_another_shard_does_not_hide_the_one_that_is_kept(
    run, run_here, with_tables, tmp_path
):
    """Both are compared: one lies beside the shard, and training here reads by the other."""
    assert run_here(index.main)(with_tables / "*.tar", "--checksums")[0] == 0
    (with_tables / "wids.json").unlink()
    first, second = (with_tables / f"{name}.members" for name in NAMES)
    second.write_bytes(first.read_bytes())
    change(with_tables / NAMES[1])
    status, document = run(with_tables / "*.tar", "--repair", tmp_path / "out")
    assert (status, sorted(found(document))) == (
        1,
        [("changed member", NAMES[1]), ("changed shard", NAMES[1])],
    )
    [repair] = document["repairs"].values()
    assert (repair["saved"], repair["lost"].keys()) == (2, {"00004"})


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.write_bytes(b"none")])
def test_a_table_that_cannot_be_used_is_told(run, with_tables, make):
    path = with_tables / f"{NAMES[0]}.members"
    path.unlink()
    make(path)
    status, document = run(with_tables / "*.tar")
    assert (status, found(document)) == (1, [("unusable table", NAMES[0])])
    assert (document["samples"], document["checksummed"]) == (5, 1)


HALF = object()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wids.json", HALF),
        ("wids.json", ""),
        ("wids.json", "[1]"),
        ("wids.json", '{"wids_version": 1}'),
        ("sizes.json", HALF),
        ("sizes.json", ""),
        ("train.json", HALF),
    ],
)
def test_an_index_that_cannot_be_used_is_told(run_here, run, folder, name, text):
    wids = ["--wids", name] if name == "train.json" else []
    options = ["--checksums", "--format", "wids,sizes", *wids]
    assert run_here(index.main)(folder / "*.tar", *options)[0] == 0
    assert run(folder / "*.tar")[0] == 0
    before = (folder / name).read_text()
    (folder / name).write_text(before[: len(before) // 2] if text is HALF else text)
    status, document = run(folder / "*.tar")
    assert (status, found(document)) == (1, [("unusable index", "data")])
    assert f"{folder / name} is no index that can be read" in document["findings"][0]["message"]


# --- what is said at the end


def verdict(folder, tmp_path, capsys):
    with suppress(SystemExit):
        verify.main([f"{folder}/*.tar", "--processes=1", f"--cache-dir={tmp_path / 'cache'}"])
    return capsys.readouterr().out.splitlines()[-1]


def test_all_is_well_is_said_only_where_all_shards_had_checksums(
    run_here, folder, tmp_path, capsys
):
    said = verdict(folder, tmp_path, capsys)
    assert said.startswith("2 shards, 5 samples: no problem was found, but 0 of 2 shards had che")
    assert "index --checksums" in said
    write_wids(folder / "wids.json", [(NAMES[0], facts_of(folder / NAMES[0]))])
    assert "but 1 of 2 shards had checksums" in verdict(folder, tmp_path, capsys)
    run_here(index.main)(folder / "*.tar", "--checksums")
    (folder / "wids.json").unlink()
    said = verdict(folder, tmp_path, capsys)
    assert said == "2 shards, 5 samples: all is well, by the checksums of all shards"
    change(folder / NAMES[0])
    said = verdict(folder, tmp_path, capsys)
    assert said == "2 shards, 5 samples: 1 problem; 2 of 2 shards had checksums to be held against"
