"""The bytes of a shard become samples by webdataset's rules, or an error that names the shard."""

import pytest

from lightning_shards.errors import DamagedShardError
from lightning_shards.readers.stream_stages import read_shard

BLOCK = 512


@pytest.fixture
def three_samples(write_tar, tmp_path):
    """A shard of three samples; each member has a header and two blocks of data."""
    members = [(f"{number}.txt", bytes([number + 65]) * 600) for number in range(3)]
    return write_tar(tmp_path / "shard.tar", members)


def read(path, expected=None):
    return list(read_shard(str(path), expected))


@pytest.fixture(params=["file", "program"])
def read_in_ways(request):
    """Reads a shard as a file, and as what a program gives."""

    def call(path, expected=None):
        return read(path if request.param == "file" else f"pipe:cat {path}", expected)

    return call


def members(sample):
    return {suffix: data for suffix, data in sample.items() if suffix != "__url__"}


@pytest.mark.parametrize("expected", [3, None])
@pytest.mark.parametrize("size", [*range(0, 3 * 3 * BLOCK, 128), 3 * 3 * BLOCK])
def test_a_cut_is_never_silent(three_samples, size, expected, read_in_ways):
    three_samples.write_bytes(three_samples.read_bytes()[:size])
    with pytest.raises(DamagedShardError, match=r"(shard\.tar|pipe:cat) .* at byte \d+; fetch or"):
        read_in_ways(three_samples, expected)


def test_what_a_program_gives_has_the_samples_of_the_file(three_samples):
    given = list(read_shard(f"pipe:cat {three_samples}", None, skip=1))
    assert list(map(members, given)) == list(map(members, read(three_samples)[1:]))


@pytest.mark.parametrize(
    ("expected", "skip", "found"), [(2, 0, "more than 2"), (4, 0, "3"), (90, 85, "at most 85")]
)
def test_a_shard_that_holds_another_number_is_an_error(three_samples, expected, skip, found):
    message = f"gave {found} samples where its index says {expected}"
    with pytest.raises(DamagedShardError, match=message):
        list(read_shard(str(three_samples), expected, skip))


def test_a_file_that_looks_like_a_url_is_a_file(tmp_path, monkeypatch, three_samples):
    monkeypatch.chdir(tmp_path)
    three_samples.rename(tmp_path / "pipe:touch canary")
    assert len(read("./pipe:touch canary")) == 3
    assert not (tmp_path / "canary").exists()
