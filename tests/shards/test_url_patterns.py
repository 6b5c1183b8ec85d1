"""Patterns that also match files which lie beside shards."""

import re

import pytest

from lightning_shards.errors import UrlError
from lightning_shards.shards.urls import expand_urls


@pytest.fixture
def folder(tmp_path):
    for name in ("a.tar", "b.tar"):
        (tmp_path / name).touch()
    return tmp_path


BESIDE = [
    "wids.json",
    "sizes.json",
    "classes.json",
    "_info.json",
    "a_stats.json",
    "__len__",
    "a.tar.members",
    "a.idx",
    "a.tar.idx",
    "repair.json",
    "README.md",
]


@pytest.mark.parametrize("name", BESIDE)
def test_a_file_beside_shards_is_an_error_that_names_their_pattern(name, folder):
    (folder / name).touch()
    shards = re.escape(f"and not a shard; write '{folder}/*.tar'")
    with pytest.raises(UrlError, match=rf"pattern {folder}/\* also matches {name}, .*{shards}"):
        expand_urls(f"{folder}/*")
    with pytest.raises(UrlError, match=f"{folder}/{name} is a file .*{shards}"):
        expand_urls([f"{folder}/a.tar", f"{folder}/{name}"])  # as a shell gives them to a tool


def test_files_beside_shards_go_by_their_known_names_only(tmp_path):
    names = ["0.json", "info.json", "members", "wids.json.tar", "x.bin"]
    for name in names:
        (tmp_path / name).touch()
    assert expand_urls(f"{tmp_path}/*") == [f"{tmp_path}/{name}" for name in names]
