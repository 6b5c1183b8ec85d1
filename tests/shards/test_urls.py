"""URLs of shards: patterns, expansion, and what is secret in them."""

import re

import pytest

from lightning_shards.errors import ShardNotFoundError, UnsafeError, UrlError
from lightning_shards.shards import patterns
from lightning_shards.shards.patterns import expand_urls, require_local_shards
from lightning_shards.shards.urls import is_local, redact


@pytest.fixture
def folder(tmp_path):
    for name in ("b-1.tar", "b-0.tar", "a.tar", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "c.tar").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
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
            "gs://b/0.tar::hf://d/0.tar::ais://b/0.tar::sftp://h/0",
            ["gs://b/0.tar", "hf://d/0.tar", "ais://b/0.tar", "sftp://h/0"],
        ),
        ("HTTP://h/0.tar", ["HTTP://h/0.tar"]),
        (
            "https://h/%23.tar::s3://b/#?::hf://d/#?",
            ["https://h/%23.tar", "s3://b/#?", "hf://d/#?"],
        ),
        ("sftp://h/a#{0,1}.tar", ["sftp://h/a#0.tar", "sftp://h/a#1.tar"]),
    ],
)
def test_patterns_expand_in_the_order_they_are_written(pattern, expected):
    assert expand_urls(pattern) == expected


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
    with pytest.raises(
        UrlError, match=f"{folder} is a folder; name the files in it: {folder}/\\*.tar"
    ):
        expand_urls(str(folder))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ([], "list of urls is empty"),
        ("", "empty url"),
        ("a-{000..009.tar", "unbalanced braces in 'a-{000..009.tar'"),
        ("https://u:secret@h/{0.tar?secret", "unbalanced braces in 'https://h/{0.tar'"),
        ("a\tb.tar", "control character"),
        ("s4://b/000.tar?secret", "unknown scheme 's4' in 's4://b/000.tar'"),
        ("gopher://h/a.tar", "unknown scheme 'gopher'.*file, http, https, s3, gs, az, hf, ais"),
        ("data:v2.tar", "unknown scheme 'data'.*leading ./"),
        ("scp://h/a.tar", "unknown scheme 'scp'.*and what fsspec reads"),
        ("https://h/*.tar?secret", r"a wildcard in 'https://h/\*.tar'"),
        ("gs://b/[0-9].tar", "only local folders can be listed"),
        ("https://h/{a}.tar", "a wildcard"),
        ("file://elsewhere/x.tar", "names no file of this machine; write file:///"),
        ("file:", "names no file"),
        ("http://[::1]:8080/x.tar", "a wildcard.*an IPv6 host by its name"),
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
        ("sftp:h/a.tar?secret", "sftp:h/a.tar"),
        ("https://me:secr/et@h/a.tar", "https://h/a.tar"),
        ("https://me:secr#et@h:80/a.tar", "https://h:80/a.tar"),
        ("https://me:sec@r:et/@h/a.tar", "https://h/a.tar"),
        ("https://h:80/a@b.tar", "https://h:80/a@b.tar"),
        ("https://[::1]:80/a@b.tar", "https://[::1]:80/a@b.tar"),
        ("pipe:aws s3 cp secret -", "pipe:aws ..."),
        ("pipe: TOKEN=secret curl x", "pipe:TOKEN ..."),
    ],
)
def test_messages_hold_no_secrets(url, expected):
    assert redact(url) == expected


@pytest.mark.parametrize("password", ["secr/et", "secr?et", "/secret"])
def test_a_password_that_would_end_the_host_is_refused_and_not_shown(password):
    with pytest.raises(UrlError, match="write %2F") as caught:
        expand_urls(f"https://me:{password}@host/{{0..3}}.tar")
    assert "secr" not in str(caught.value)
    assert "me:" not in str(caught.value)
    written = "https://me:secr%2Fet@host:80/0@.tar"
    assert expand_urls(written) == [written]


def test_missing_shards_are_named_once_and_counted(folder):
    urls = expand_urls(f"{folder}/b-{{0..5}}.tar::{folder}/b-5.tar::http://h/0.tar")
    message = r"4 of 8 shards missing: .*b-2.tar, .*b-4.tar and 1 more; .*: check the names"
    with pytest.raises(ShardNotFoundError, match=message):
        require_local_shards(urls)


# --- how many shards braces stand for


@pytest.mark.parametrize(
    "pattern",
    [
        "s-{0..9999999999}.tar",
        "{0..1000000}{a..z}",
        "{0.." + "9" * 5000 + "}",
        "https://u:secret@h/{0..9999999}.tar?secret",
    ],
)
def test_braces_that_stand_for_too_many_shards_are_refused(pattern, monkeypatch):
    monkeypatch.setattr(patterns, "MAX_EXPANDED", 10_000)
    message = "stand for more than 10,000 shards; check the numbers in them, or pack larger"
    with pytest.raises(UrlError, match=message) as caught:
        expand_urls(pattern)
    assert "secret" not in str(caught.value)


BESIDE = ["wids.json", "a_stats.json", "__len__", "a.tar.members", "a.idx", "README.md"]


@pytest.mark.parametrize("name", BESIDE)
def test_a_file_beside_shards_is_an_error_that_names_their_pattern(name, folder):
    (folder / name).touch()
    shards = re.escape(f"and not a shard; write '{folder}/*.tar'")
    with pytest.raises(UrlError, match=rf"{folder}/{name}, which {folder}/\* names, .*{shards}"):
        expand_urls(f"{folder}/*")
    with pytest.raises(UrlError, match=f"{folder}/{name} names, is a file .*{shards}"):
        expand_urls([f"{folder}/a.tar", f"{folder}/{name}"])  # as a shell gives them to a tool
