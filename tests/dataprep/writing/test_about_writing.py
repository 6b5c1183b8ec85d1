"""What writing guarantees, in the names of its tests: whole shards, read back as they were."""

import tarfile

import numpy as np
import pytest
import torch

from lightning_shards import ShardDataset
from lightning_shards.dataprep.tar_writer import member_header
from lightning_shards.dataprep.writer import ShardWriter
from lightning_shards.errors import SampleError
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.tar.tar_streams import read_samples
from lightning_shards.tools import index
from tests.dataprep.writing.conftest import SAMPLES, tars
from tests.tools.conftest import seen


def as_read(folder):
    """The samples that our reader gives."""
    found = [sample for path in tars(folder) for sample in read_samples(str(path))]
    for sample in found:
        del sample["__url__"]
    return found


# --- contents


def test_samples_are_read_back_in_order(tmp_path, write):
    writer = write()
    expected = [sample | {"cls": sample["cls"].encode()} for sample in SAMPLES]
    assert as_read(tmp_path / "out") == expected
    assert [shard.samples for shard in writer.shards] == [6, 6, 6, 2]
    assert writer.urls == str(tmp_path / "out" / "shard-{000000..000003}.tar")


def test_tarfile_reads_plain_members_without_traces_of_the_machine(tmp_path, write):
    write(prefix="train")
    with tarfile.open(tmp_path / "out" / "train-000000.tar", "r:", errorlevel=2) as archive:
        members = archive.getmembers()
        contents = [archive.extractfile(member).read() for member in members]
    assert [member.name for member in members[:2]] == ["class.0/0000.jpg", "class.0/0000.cls"]
    assert contents[:4] == [b"", "ä".encode(), b"\x01", "ä".encode()]
    for member in members:
        assert (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o644)
        assert (member.uname, member.gname, member.pax_headers) == ("", "", {})
        assert member.offset_data == member.offset + 512  # one header block, no PAX


@pytest.mark.parametrize(
    ("key", "size"),
    [("x" * 96, 8**11 - 1), ("x" * 97, 3), ("é", 3), ("鍵" * 600, 3), ("a", 8**11)],
)
def test_names_and_sizes_of_any_length_are_read_by_tarfile(tmp_path, key, size):
    name = f"{key}.jpg"
    header = member_header(name, size)
    needs_pax = len(name.encode()) > 100 or not name.isascii() or size >= 8**11
    assert (len(header) > 512) == needs_pax
    (tmp_path / "x.tar").write_bytes(header)
    with tarfile.open(tmp_path / "x.tar", "r:") as archive:
        member = archive.firstmember
    assert (member.name, member.size) == (name, size)


def test_a_shard_ends_before_the_sample_that_would_exceed_its_bytes(write):
    samples = [{"__key__": f"{i}", "bin": bytes(512 * size)} for i, size in enumerate([3, 3, 9, 1])]
    writer = write(samples, max_samples=None, max_bytes=8 * 512)
    assert [shard.samples for shard in writer.shards] == [2, 1, 1]


# --- the index


def test_the_index_is_the_one_that_the_tool_writes(tmp_path, write):
    write()
    before = seen(tmp_path / "out")
    (tmp_path / "out" / "wids.json").unlink()
    options = ["--checksums", "--processes", "1", "--cache-dir", str(tmp_path / "cache")]
    index.main([str(tmp_path / "out" / "*.tar"), *options])
    assert seen(tmp_path / "out") == before


def test_a_run_counts_and_lists_nothing_anew(tmp_path, write, load, forbid_scans):
    write()
    forbid_scans()
    urls = [str(path) for path in tars(tmp_path / "out")]
    assert load(urls).counts.tolist() == [6, 6, 6, 2]
    store = TableStore(CacheFolder(tmp_path / "cache"))
    assert all(store.table_of(url).crc32 is not None for url in urls)


# --- what is refused


BAD_KEYS = ("", "a.b", "/a", "a//b", "../a", "a/./b", "a\nb", "\udc80", "__x__/a", "x" * 3000, 7)
BAD_FIELDS = ("", "JPG", ".cls", "a/b", "a\n", "İ")


@pytest.mark.parametrize(
    ("key", "field", "message"),
    [
        *((key, "cls", "key") for key in BAD_KEYS),
        *(("a", field, "cannot be a field") for field in BAD_FIELDS),
        ("__ab12", "label__", "'label__' cannot be a field of sample '__ab12'"),
    ],
)
def test_names_that_would_not_come_back_are_refused(write, key, field, message):
    with pytest.raises(SampleError, match=message):
        write([{"__key__": key, field: b"1"}])


@pytest.mark.parametrize(
    ("suffix", "value", "expected"),
    [
        ("cls", 3, 3),
        ("x.cls", np.int32(-3), -3),
        ("txt", 0.1, "0.1"),
        ("json", {"box": np.arange(2), "name": "größe"}, {"box": [0, 1], "name": "größe"}),
        ("json", [1, None], [1, None]),
        ("npy", np.eye(2, dtype=np.float16), [[1, 0], [0, 1]]),
        ("npy", torch.tensor(2.5), 2.5),
        ("jpg", b"as it is", b"as it is"),
    ],
)
def test_values_are_encoded_by_their_suffix(tmp_path, write, suffix, value, expected):
    urls = write([{"__key__": "a", suffix: value}]).urls
    decode = {"x": "raw"} if suffix == "jpg" else {}
    dataset = ShardDataset(urls, fields={"x": suffix}, decode=decode, cache_dir=str(tmp_path))
    read = dataset[0]["x"]
    assert (read.tolist() if hasattr(read, "tolist") else read) == expected
    if isinstance(value, np.ndarray):
        assert read.dtype == value.dtype


@pytest.mark.parametrize(
    ("suffix", "value"),
    [
        *(("cls", value) for value in (1.0, None)),
        *(("txt", value) for value in ([1], None)),
        *(("npy", value) for value in ({"a": 1}, [[1], [1, 2]])),
        ("json", {"a": object()}),
        ("jpg", np.zeros(2)),
    ],
)
def test_a_value_that_its_suffix_does_not_take_is_refused(write, suffix, value):
    kind = type(value).__name__
    with pytest.raises(SampleError, match=f"'{suffix}' cannot be made of {kind}.*; give bytes or"):
        write([{"__key__": "a", suffix: value}])


def test_a_key_that_comes_again_in_another_shard_is_refused(write):
    with pytest.raises(SampleError, match=r"'class.0/0000' was written before"):
        write([*SAMPLES, SAMPLES[0]])


def test_no_sample_at_all_is_refused(tmp_path, write):
    with pytest.raises(SampleError, match="no sample"):
        write([])
    assert seen(tmp_path / "out") == {}


@pytest.mark.parametrize("wrong", [{"zip": 3}, {"ZIP": b""}])
def test_a_refused_sample_leaves_nothing_of_itself(tmp_path, write, wrong):
    with ShardWriter(tmp_path / "caught", max_samples=6, cache_dir=tmp_path / "cache") as writer:
        for sample in SAMPLES:
            with pytest.raises(SampleError):
                writer.write(sample | {"__key__": sample["__key__"] + "x"} | wrong)
            writer.write(sample)
    write()
    assert seen(tmp_path / "caught") == seen(tmp_path / "out")
