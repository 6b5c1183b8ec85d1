"""Names of pieces tell objects, versions and ranges apart, and hold no credential."""

import pytest

from lightning_shards.shards.private_files import sidecar_name
from lightning_shards.shards.remote.cache.piece_files import (
    Piece,
    group_of,
    groups_of,
    share_of,
)
from lightning_shards.shards.urls import without_credentials

URL = "https://me:secret@host/train/0.tar?versionId=3&X-Amz-Signature=secret&X-Amz-Date=2026"


@pytest.mark.parametrize(
    "other",
    [
        Piece(URL.replace("train", "val"), '"a"', 0, 10),
        Piece(URL.replace("versionId=3", "versionId=4"), '"a"', 0, 10),
        Piece(URL, '"b"', 0, 10),
        Piece(URL, '"a"', 1, 10),
        Piece(URL, '"a"', 0, 11),
        Piece(URL.replace("/train/", "/a//b@train/"), '"a"', 0, 10),
        Piece(URL.replace("/train/", "/a//c@train/"), '"a"', 0, 10),
    ],
)
def test_what_may_be_other_bytes_has_another_name(other):
    piece = Piece(URL, '"a"', 0, 10)
    assert (piece.folder, piece.name) != (other.folder, other.name)


@pytest.mark.parametrize(
    "signed",
    [
        "https://host/train/0.tar?versionId=3",
        "https://you@host/train/0.tar?versionId=3&x-amz-signature=another",
        "https://host/train/0.tar?versionId=3&sv=1&sr=b&sig=another&se=2027",
        "https://host/train/0.tar?Expires=9&Signature=another&versionId=3&Key-Pair-Id=K",
    ],
)
def test_other_credentials_are_the_same_piece(signed):
    assert Piece(signed, '"a"', 0, 10).folder == Piece(URL, '"a"', 0, 10).folder
    assert sidecar_name(signed) == sidecar_name(URL)


@pytest.mark.parametrize("url", ["s3://bucket/a.tar", "https://host/a?size=3&sort=up&shard=4"])
def test_other_parts_of_a_url_stay(url):
    assert without_credentials(url) == url


def test_a_user_is_named_before_the_first_slash_alone():
    """What follows is the name of an object: two of them must not share pieces or tables."""
    urls = [f"https://host/a//{user}@b/0.tar" for user in ("me", "you")]
    urls += [f"https://host/get?from=https://{user}@b/0.tar" for user in ("me", "you")]
    assert len({without_credentials(url) for url in urls}) == 4
    assert len({sidecar_name(url) for url in urls[:2]}) == 2
    assert without_credentials("https://me@home:s@cret@host/0.tar") == "https://host/0.tar"


def test_names_are_those_of_files():
    piece = Piece(URL, '"../../a/\\b"', 5, 15)
    assert piece.size == 10
    assert piece.folder.isalnum()
    assert piece.name == "5-15"


def test_shares_are_uniform():
    shares = [share_of("folder", f"{number}-9") for number in range(2000)]
    assert 0 <= min(shares) < max(shares) < 1
    assert 900 < sum(share < 0.5 for share in shares) < 1100


def test_pieces_of_numbered_shards_of_one_folder_are_one_group():
    train = [f"s3://b/img256/train-{number:04d}.tar" for number in (0, 1, 1234)]
    (group,) = groups_of(train)
    pieces = [Piece(url, version, 0, 9) for url in train for version in ("v", "w")]
    assert {group_of(piece.folder) for piece in pieces} == {group}
    assert len({piece.folder for piece in pieces}) == 6
    others = ["s3://b/img512/train-0000.tar", "s3://b/img256/val-0000.tar"]
    assert len(groups_of([*train, *others])) == 3
    signed = "https://me:secret@host/0.tar?X-Amz-Signature=secret"
    assert groups_of([signed]) == groups_of(["https://host/1.tar"])
