"""What users write, and the shards that it stands for."""

import os
from pathlib import Path

import pytest
from braceexpand import braceexpand
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.errors import ShardNotFoundError, UnsafeError, UrlError
from lightning_shards.shards.urls import (
    expand_urls,
    is_local,
    missing_shards,
    redact,
    require_local_shards,
    split_url,
)


@pytest.fixture
def folder(tmp_path):
    for name in ("b-1.tar", "b-0.tar", "a.tar", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "c.tar").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.tar", ["a.tar"]),
        ("s-{000000..000009}.tar", [f"s-{shard:06d}.tar" for shard in range(10)]),
        ("{b,a}-{1..0}.tar", ["b-1.tar", "b-0.tar", "a-1.tar", "a-0.tar"]),
        ("a::b-{0..1}::a", ["a", "b-0", "b-1", "a"]),
        (["b", "a-{1,2}::c", "b"], ["b", "a-1", "a-2", "c", "b"]),
        (("https://h/{0..1}.tar?x=%7B",), ["https://h/0.tar?x=%7B", "https://h/1.tar?x=%7B"]),
        (" a.tar ::\n b.tar", ["a.tar", "b.tar"]),
        ("file:///x/{0..1}.tar", ["/x/0.tar", "/x/1.tar"]),
        ("file:x/a.tar", ["x/a.tar"]),
        ("FILE://localhost/x/a%20b.tar", ["/x/a b.tar"]),
        (
            "gs://b/0.tar::hf://d/0.tar::ais://b/0.tar",
            ["gs://b/0.tar", "hf://d/0.tar", "ais://b/0.tar"],
        ),
        (
            "sftp://h/0::ftps://h/0::scp://h/0::htgs://b/0",
            ["sftp://h/0", "ftps://h/0", "scp://h/0", "htgs://b/0"],
        ),
        ("HTTP://h/0.tar", ["HTTP://h/0.tar"]),
    ],
)
def test_patterns_expand_in_the_order_they_are_written(pattern, expected):
    assert expand_urls(pattern) == expected


@given(
    st.lists(
        st.sampled_from(["a", "b", "{0..3}", "{08..11..2}", "{x,y}", "{,z}", "/"]),
        min_size=1,
        max_size=4,
    )
)
def test_braces_expand_as_in_bash(parts):
    pattern = "s" + "".join(parts)
    assert expand_urls(pattern) == list(braceexpand(pattern))


def test_wildcards_match_files_in_sorted_order(folder):
    assert expand_urls(f"{folder}/b-*.tar") == [f"{folder}/b-0.tar", f"{folder}/b-1.tar"]
    assert expand_urls(f"{folder}/b-[1].tar::{folder}/?.tar") == [
        f"{folder}/b-1.tar",
        f"{folder}/a.tar",
    ]
    assert expand_urls(f"file:{folder}/?.tar") == [f"{folder}/a.tar"]


def test_a_file_whose_name_has_wildcards_is_that_file(folder):
    (folder / "b-[0].tar").touch()
    assert expand_urls(f"{folder}/b-[0].tar") == [f"{folder}/b-[0].tar"]


def test_a_wildcard_without_matches_is_an_error(folder):
    with pytest.raises(ShardNotFoundError, match=r"no file matches .*/d-\*\.tar; check the folder"):
        expand_urls(f"{folder}/a.tar::{folder}/d-*.tar")


def test_the_home_folder_is_expanded(monkeypatch, folder):
    monkeypatch.setenv("HOME", str(folder))
    assert expand_urls("~/b-?.tar") == [f"{folder}/b-0.tar", f"{folder}/b-1.tar"]
    assert expand_urls("~/new.tar") == [f"{folder}/new.tar"]


def test_a_folder_is_an_error_that_names_its_tars(folder):
    with pytest.raises(UrlError, match=f"{folder} is a folder; name its shards: {folder}/\\*.tar"):
        expand_urls(str(folder))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ([], "list of urls is empty"),
        ("", "empty url"),
        ("a.tar::", "empty url"),
        (["a.tar", ""], "empty url"),
        ("a-{000..009.tar", "unbalanced braces in 'a-{000..009.tar'"),
        ("https://u:secret@h/{0.tar?secret", "unbalanced braces in 'https://h/{0.tar'"),
        ("a\tb.tar", "control character"),
        ("ht\ttp://h/a.tar", "control character"),
        (
            "s3://b/000.tar?secret",
            r"'s3://b/000.tar': s3 is not read yet.*presigned.*pipe:aws s3 cp",
        ),
        ("ftp://h/a.tar", "unknown scheme 'ftp'.*file, http, https, gs, hf, ais, sftp"),
        ("data:v2.tar", "unknown scheme 'data'.*leading ./"),
        ("https://h/*.tar?secret", r"a wildcard in 'https://h/\*.tar'"),
        ("gs://b/[0-9].tar", "only local folders can be listed"),
        ("https://h/{a}.tar", "a wildcard"),
        ("file://elsewhere/x.tar", "names the machine 'elsewhere'"),
        ("file:", "names no file"),
        ("file:a%00b", "names no file"),
    ],
)
def test_what_cannot_be_a_shard_is_refused(pattern, message):
    with pytest.raises(UrlError, match=message) as caught:
        expand_urls(pattern)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "pattern",
    [
        "pipe:rm -rf secret",
        "a.tar::pipe:rm -rf secret",
        ["a.tar", " PIPE:rm -rf secret"],
        "{pipe,file}:rm -rf secret",
        "{a, pipe:rm -rf secret}",
    ],
)
def test_a_pipe_is_refused_wherever_it_hides(pattern):
    with pytest.raises(
        UnsafeError, match=r"run a shell command.*allow_unsafe=\['pipe'\]"
    ) as caught:
        expand_urls(pattern)
    assert "secret" not in str(caught.value)


def test_a_pipe_that_is_allowed_is_kept():
    assert expand_urls("pipe:cat {0..1}.tar", allow_pipe=True) == [
        "pipe:cat 0.tar",
        "pipe:cat 1.tar",
    ]
    with pytest.raises(UrlError, match=r"scp, htgs, pipe;"):
        expand_urls("ftp://h/a.tar", allow_pipe=True)


def test_no_file_name_becomes_a_url(monkeypatch, folder):
    """webdataset opens by scheme: a file named `pipe:...` would be run."""
    monkeypatch.chdir(folder)
    (folder / "pipe:touch pwned.tar").touch()
    assert expand_urls("pip*") == ["./pipe:touch pwned.tar"]
    assert expand_urls("file:pipe:touch%20pwned.tar") == ["./pipe:touch pwned.tar"]
    assert expand_urls("./x:y.tar") == ["./x:y.tar"]
    assert expand_urls("-") == ["./-"]  # webdataset takes a bare - for its standard input
    assert all(is_local(url) for url in expand_urls("pip*::file:http:x::./gs:x"))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/data/a?b#c@d.tar", "/data/a?b#c@d.tar"),
        ("https://user:secret@h:80/d/a.tar?X-Sig=secret", "https://h:80/d/a.tar"),
        ("https://h/a@b.tar#secret", "https://h/a@b.tar"),
        ("https://token-secret@h", "https://h"),
        ("scp:h/a.tar?secret", "scp:h/a.tar"),
        ("pipe:aws s3 cp secret -", "pipe:aws ..."),
        ("pipe: TOKEN=secret curl x", "pipe:TOKEN ..."),
    ],
)
def test_messages_hold_no_secrets(url, expected):
    assert redact(url) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("a.tar", ("", "a.tar")),
        ("/d/a.tar", ("/d", "a.tar")),
        ("./a:b.tar", (".", "a:b.tar")),
        ("https://u:p@h/d/a.tar?q=/x", ("https://h/d", "a.tar")),
        ("pipe:cat /d/a.tar", ("pipe:", "pipe:cat /d/a.tar")),
    ],
)
def test_a_shard_has_a_folder_and_a_name(url, expected):
    assert split_url(url) == expected


def test_local_means_a_plain_path_or_a_file_url():
    assert all(map(is_local, ["a.tar", "/a.tar", "./a:b", "file:/a", "~/a", "a/b:c"]))
    assert not any(map(is_local, ["http://h/a", "pipe:cat a", " pipe:cat a", "x:y"]))


def test_missing_shards_are_named_once_and_counted(folder):
    urls = expand_urls(f"{folder}/b-{{0..5}}.tar::{folder}/b-5.tar::http://h/0.tar")
    assert missing_shards(urls) == [f"{folder}/b-{shard}.tar" for shard in range(2, 6)]
    message = r"4 of 8 shards do not exist: .*b-2.tar, .*b-4.tar and 1 more; check the numbers"
    with pytest.raises(ShardNotFoundError, match=message):
        require_local_shards(urls)


def test_a_missing_folder_is_named(folder):
    with pytest.raises(ShardNotFoundError, match=f"folder {folder}/x does not exist .* the mount"):
        require_local_shards([f"{folder}/x/0.tar"])
    with pytest.raises(ShardNotFoundError, match=r"1 of 1 shards do not exist: no-such.tar; check"):
        require_local_shards(["no-such.tar"])


def test_shards_that_are_there_pass(folder):
    require_local_shards([os.fspath(Path(folder, "a.tar")), "http://h/0.tar"])
    assert missing_shards([str(folder / "c.tar")]) == [str(folder / "c.tar")]  # a folder
