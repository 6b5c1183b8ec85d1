"""Files with counts beside shards: their formats, and where they are looked for."""

import json

import pytest

from lightning_shards.errors import FileAccessError, StorageError


def _write_wids(path, shards):
    shardlist = [{"url": url, "nsamples": samples} for url, samples in shards]
    path.write_text(json.dumps({"wids_version": 1, "shardlist": shardlist}))


# --- files beside the shards


@pytest.mark.parametrize("prefix", ["", "folder/", "s3://bucket/"])
def test_a_wids_index_of_any_name_counts_shards_wherever_they_were(
    write_shards, load, tmp_path, forbid_scans, prefix
):
    urls = write_shards([3, 4])
    entries = [(f"{prefix}00{shard}.tar", 30 + shard) for shard in range(2)]
    _write_wids(tmp_path / "any.json", entries)
    forbid_scans()
    assert load(urls).counts.tolist() == [30, 31]


def test_an_index_of_several_folders_counts_where_they_agree(write_shards, load, tmp_path):
    urls = write_shards([3], tmp_path / "val")
    train = ("data/train/000.tar", 30)
    _write_wids(tmp_path / "val" / "wids.json", [train, ("data/val/000.tar", 30)])
    assert load(urls).samples == 30
    _write_wids(tmp_path / "val" / "wids.json", [train, ("data/val/000.tar", 40)])
    assert load(urls).samples == 3  # which of the two was moved here? the shard itself knows


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[3]",
        '{"000.tar": -1}',
        '{"wids_version": 1, "shardlist": [4, {"url": "000.tar"}]}',
        '{"wids_version": 1, "shardlist": [{"url": "000.tar", "nsamples": "4"}]}',
    ],
)
def test_a_file_that_is_no_index_is_passed_over(write_shards, load, tmp_path, content):
    urls = write_shards([3])
    for name in ("sizes.json", "other.json"):
        (tmp_path / name).write_text(content)
    (tmp_path / "folder.json").mkdir()
    assert load(urls).samples == 3


def test_a_wids_index_is_believed_before_sizes_json(write_shards, load, tmp_path):
    urls = write_shards([3, 4])
    _write_wids(tmp_path / "wids.json", [("000.tar", 30)])
    (tmp_path / "sizes.json").write_text('{"000.tar": 3, "001.tar": 5}')
    assert load(urls).counts.tolist() == [30, 5]  # reading them finds that they are wrong


# --- remote shards


class Beside:
    """Storages of a folder that has these files; an error is what asking for one of them gives."""

    def __init__(self, files):
        self.files, self.asked = files, []

    def of(self, url):
        return self

    def stat(self, url):
        """Every shard is there."""

    def read_beside(self, urls, max_bytes):
        self.asked += urls
        found = self.files.get(urls[0].partition("?")[0].rpartition("/")[2])
        if isinstance(found, Exception):
            raise found
        return [found], []


WIDS = b'{"wids_version": 1, "shardlist": [{"url": "0.tar", "nsamples": 3, "filesize": 5}]}'


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sizes.json": b'{"0.tar": 3, "1.tar": 4}'}, [3, 4]),
        ({"sizes.json": b'{"1.tar": 4}', "wids.json": WIDS}, [3, 4]),
        ({"sizes.json": FileAccessError("no"), "wids.json": WIDS.replace(b'["', b"")}, None),
        ({}, None),
    ],
)
def test_the_files_beside_a_remote_shard_count_it(load, files, expected):
    storages = Beside(files)
    urls = [f"http://user:secret@host/d/{shard}.tar?signature=1" for shard in range(2)]
    shards = load(urls, storages=storages)
    assert (None if shards.counts is None else shards.counts.tolist()) == expected
    names = ["wids.json", "sizes.json", *["_info.json"] * (expected is None)]
    assert storages.asked == [f"http://user:secret@host/d/{name}?signature=1" for name in names]


def test_a_server_that_fails_is_asked_for_no_other_file(load):
    storages = Beside({"wids.json": StorageError("no answer")})
    assert load(["http://host/d/0.tar"], storages=storages).counts is None
    assert storages.asked == ["http://host/d/wids.json"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(b"<html>log in</html>", "no JSON of counts from"), (b"\x1f\x8bx", "'utf-8' codec")],
)
def test_a_warning_says_why_counts_are_lacking(load, caplog, answer, reason):
    assert load(["http://h/0.tar?secret"], storages=Beside({"wids.json": answer})).counts is None
    (message,) = caplog.messages
    assert "http://h/wids.json" in message
    assert reason in message
    assert "secret" not in message


@pytest.mark.parametrize("url", ["gs://b/0.tar", "hf://d/0.tar", "pipe:cat 0.tar"])
def test_one_shard_without_a_count_leaves_the_index_without(write_shards, load, forbid_scans, url):
    urls = [*write_shards([3]), url]
    forbid_scans()
    shards = load(urls, storages=Beside({}))
    assert shards.urls == tuple(urls)
    assert shards.counts is None


def test_the_total_of_a_remote_folder_is_known_where_its_shards_have_no_counts(load):
    storages = Beside({"__len__": b" 12\n"})
    urls = ["http://host/d/0.tar", "http://host/d/1.tar?signature"]
    shards = load(urls, wants_total=True, storages=storages)
    assert (shards.counts, shards.total) == (None, 12)
    assert storages.asked[-1] == "http://host/d/__len__"


def _sizes(folder, samples):
    (folder / "sizes.json").write_text(json.dumps({"000.tar": samples}))


def _wids(folder, samples):
    _write_wids(folder / "wids.json", [("000.tar", samples)])


def _timm(folder, samples):
    split = {"name": "train", "filenames": ["000.tar"], "shard_lengths": [samples]}
    (folder / "_info.json").write_text(json.dumps({"splits": {"train": split}}))


@pytest.mark.parametrize(("stated", "counted"), [(30, 30), (0, 15)])
@pytest.mark.parametrize("write", [_sizes, _wids, _timm])
def test_a_file_counts_a_shard_unless_it_says_that_there_is_no_sample(
    write_shards, load, tmp_path, forbid_scans, write, stated, counted
):
    urls = write_shards([15])
    write(tmp_path, stated)
    if stated:
        forbid_scans()
    assert load(urls).counts.tolist() == [counted]
