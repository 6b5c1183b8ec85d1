"""A file of a piece gives its bytes or is no piece; its name tells all apart but credentials."""

import pytest

from lightning_shards.remote.pieces import TRAILER_BYTES, Piece, read_piece, write_piece
from lightning_shards.shards.files import sidecar_name
from lightning_shards.shards.urls import without_credentials

DATA = bytes(range(256)) * 12
SIZE = len(DATA)


PIECE = Piece("s3://b/0.tar", 100, 100 + SIZE, (9999, 7))


@pytest.fixture
def path(tmp_path):
    """The file of a piece that begins at offset 100."""
    path = tmp_path / "piece"
    with path.open("wb") as file:
        assert write_piece(file, [DATA[:7], memoryview(DATA)[7:]]) == SIZE
    return path


def bytes_in(path, *spans):
    """The bytes of a piece at these offsets of the object; None if it is not whole."""
    found = [bytearray(stop - start) for start, stop in spans]
    wanted = [(start, memoryview(data)) for (start, _), data in zip(spans, found, strict=True)]
    return list(map(bytes, found)) if read_piece(str(path), PIECE, wanted) else None


def test_the_bytes_are_those_that_were_written(path):
    assert bytes_in(path, (100, 100 + SIZE), (357, 360)) == [DATA, DATA[257:260]]
    assert path.stat().st_size == len(DATA) + TRAILER_BYTES


@pytest.mark.parametrize("length", [100, SIZE // 2, SIZE + TRAILER_BYTES - 1])
def test_a_torn_piece_is_none_and_is_removed(path, length):
    whole = path.read_bytes()
    require_none(path, whole[:length])
    require_none(path, bytes(length) + whole[length:])


@pytest.mark.parametrize("number", [0, 1500, -65, -64, -56, -52, -44])
def test_a_piece_with_one_other_bit_is_none_and_is_removed(path, number):
    data = bytearray(path.read_bytes())
    data[number] ^= 1
    require_none(path, data)


def require_none(path, data):
    path.write_bytes(data)
    assert bytes_in(path, (100, 110)) is None
    assert not path.exists()


URL = "https://me:secret@host/train/0.tar?versionId=3&X-Amz-Signature=secret&X-Amz-Date=2026"


@pytest.mark.parametrize(
    "other",
    [
        Piece(URL.replace("train", "val"), 0, 10, (99, 1)),
        Piece(URL.replace("versionId=3", "versionId=4"), 0, 10, (99, 1)),
        Piece(URL, 0, 10, (99, 2)),
        Piece(URL, 10, 20, (99, 1)),
        Piece(URL, 0, 11, (99, 1)),
        Piece(URL.replace("/train/", "/a//b@train/"), 0, 10, (99, 1)),
    ],
)
def test_what_may_be_other_bytes_has_another_name(other):
    piece = Piece(URL, 0, 10, (99, 1))
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
    assert Piece(signed, 0, 10, (99, 1)).folder == Piece(URL, 0, 10, (99, 1)).folder
    assert sidecar_name(signed) == sidecar_name(URL)


def test_a_user_is_named_before_the_first_slash_alone():
    """What follows is the name of an object: two of them must not share pieces or tables."""
    urls = [f"https://host/a//{user}@b/0.tar" for user in ("me", "you")]
    urls += [f"https://host/get?from=https://{user}@b/0.tar" for user in ("me", "you")]
    assert len({without_credentials(url) for url in urls}) == 4
    assert len({sidecar_name(url) for url in urls[:2]}) == 2
    assert without_credentials("https://me@home:s@cret@host/0.tar") == "https://host/0.tar"
