"""A sample whose members are not adjacent is an error, and not several samples."""

import pytest

from lightning_shards import ShardDataset, SplitConfig
from lightning_shards.errors import SampleError

OPTIONAL = {"label": "cls?", "text": "txt?"}
READERS = pytest.mark.parametrize("reader", ["indexed", "stream"])
MESSAGE = r"members of 'a' are not adjacent in .*x\.tar: txt came after .* `.* reshard` joins them"


@pytest.fixture
def tar_of(tmp_path, write_tar):
    """Writes a tar of members with one digit each."""
    return lambda *names: str(write_tar(tmp_path / "x.tar", [(name, b"1") for name in names]))


SPLIT = ["a.cls", "b.cls", "a.txt", "b.txt"]


@pytest.mark.parametrize(
    ("reader", "fields"),
    [("indexed", OPTIONAL), ("indexed", {"label": "cls", "text": "txt"}), ("stream", OPTIONAL)],
    ids=["indexed", "indexed, none optional", "stream"],
)
@pytest.mark.parametrize("bad", [{}, {"on_bad_sample": "substitute", "max_bad": 9}], ids=len)
def test_a_split_sample_is_an_error_and_nothing_stands_for_it(
    tar_of, make_module, reader, fields, bad
):
    split = SplitConfig(tar_of(*SPLIT), sampling="sequential", reader=reader, **bad)
    with pytest.raises(SampleError, match=MESSAGE):
        list(make_module(split, fields=fields, batch_size=1).loader("train"))


def test_a_split_sample_is_an_error_for_a_dataset(tar_of, tmp_path):
    with pytest.raises(SampleError, match=MESSAGE):
        ShardDataset(tar_of(*SPLIT), fields=OPTIONAL, cache_dir=str(tmp_path / "cache"))[0]


@READERS
@pytest.mark.parametrize(
    ("names", "samples"),
    [
        (["a.cls", "a.txt", "b.cls", "a.cls"], 3),  # another sample of that name, as in webdataset
        (["a.cls", "b.cls", "a.cls", "a.txt"], 3),
        (["a.cls", "README", "a.txt", "b.txt"], 2),  # what is in no sample parts none
    ],
)
def test_other_tars_are_read_as_before(tar_of, make_module, reader, names, samples):
    split = SplitConfig(tar_of(*names), sampling="sequential", reader=reader)
    assert len(list(make_module(split, fields=OPTIONAL, batch_size=1).loader("train"))) == samples
