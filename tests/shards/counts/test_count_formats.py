"""What other tools count is taken, where it is newer than the shard and nobody else answers."""

import json
import os
import shutil

import pytest


def _json(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def _timm(folder):
    split = {"name": "train", "filenames": ["000.tar"], "shard_lengths": [30]}
    return _json(folder / "_info.json", {"splits": {"train": split}})


def _img2dataset(folder):
    stats = {"count": 99, "successes": 30, "failed_to_download": 69}
    return _json(folder / "000_stats.json", stats)


def _length(folder):
    path = folder / "__len__"
    path.write_text("30\n")
    return path


WRITERS = [_timm, _img2dataset, _length]


@pytest.mark.parametrize("write", WRITERS)
def test_a_file_of_another_tool_saves_the_scan(write_shards, load, tmp_path, forbid_scans, write):
    urls = write_shards([15])
    write(tmp_path)
    forbid_scans()
    assert load(urls).counts.tolist() == [30]


@pytest.mark.parametrize("write", WRITERS)
def test_a_file_that_is_older_than_its_shard_is_passed_over(write_shards, load, tmp_path, write):
    urls = write_shards([15])
    os.utime(write(tmp_path), (1, 1))
    assert load(urls).counts.tolist() == [15]


def test_sizes_json_goes_before_what_other_tools_say(write_shards, load, tmp_path, forbid_scans):
    urls = write_shards([3])
    _json(tmp_path / "sizes.json", {"000.tar": 20})
    _timm(tmp_path)
    forbid_scans()
    assert load(urls).samples == 20


def test_one_length_for_a_folder_says_nothing_of_its_shards(write_shards, load, tmp_path):
    urls = write_shards([3, 4])
    _length(tmp_path)
    assert load(urls).counts.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("000_stats.json", b'{"successes": "30"}'),
        ("000_stats.json", b'{"successes": -1}'),
        ("000_stats.json", b"[30]"),
        (
            "_info.json",
            b'{"splits": {"train": {"filenames": ["000.tar"], "shard_lengths": [1.5]}}}',
        ),
        ("_info.json", b'{"splits": [1]}'),
        ("_info.json", b'{"splits": {"a": {"filenames": [["000.tar"]], "shard_lengths": [1]}}}'),
        ("__len__", b"__import__('os').getpid()"),
        ("__len__", b"True"),
    ],
)
def test_damaged_files_are_passed_over(write_shards, load, tmp_path, name, content):
    urls = write_shards([3])
    (tmp_path / name).write_bytes(content)
    assert load(urls).counts.tolist() == [3]


def test_a_file_named_up_to_a_dot_counts_the_one_shard_that_it_can_be_of(
    write_shards, load, tmp_path
):
    """Of `000.a.tar` and `000.b.tar` it may be either's; `000.tar` has it even beside them."""
    [url] = write_shards([15])
    _img2dataset(tmp_path)
    names = ["000.a.tar", "000.b.tar"]
    urls = [os.path.join(tmp_path, name) for name in names]  # noqa: PTH118
    os.rename(url, urls[0])  # noqa: PTH104
    assert load(urls[:1]).counts.tolist() == [30]
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    os.link(urls[0], urls[1])
    assert load(urls).counts.tolist() == [15, 15]
    os.link(urls[0], url)
    assert load([url]).counts.tolist() == [30]
