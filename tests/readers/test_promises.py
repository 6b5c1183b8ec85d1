"""Promises about single samples that nothing else would notice if they broke."""

import numpy as np
import pytest

from lightning_shards import SplitConfig
from lightning_shards.errors import TransformError

READERS = pytest.mark.parametrize("reader", ["indexed", "stream"])


@pytest.fixture
def tar_of(tmp_path, write_tar):
    return lambda *members: str(write_tar(tmp_path / "x.tar", list(members)))


@READERS
def test_the_first_suffix_that_a_sample_has_is_taken(tar_of, make_module, reader):
    tar = tar_of(
        ("0.c", b"c0"), ("0.b", b"b0"), ("0.a", b"a0"),
        ("1.a", b"a1"), ("1.b", b"b1"),
        ("2.c", b"c2"), ("2.b", b"b2"),
        ("3.c", b"c3"),
    )  # fmt: skip
    settings = {"fields": {"x": "a;b;c"}, "decode": {"x": "text"}, "batch_size": 4}
    split = SplitConfig(tar, sampling="sequential", reader=reader)
    (batch,) = make_module(split, **settings).loader("train")
    assert batch["x"] == ["a0", "a1", "b2", "c3"]


class FailsOnce:
    """A transform that fails at its first call alone."""

    def __init__(self):
        self.calls = 0

    def __call__(self, value):
        self.calls += 1
        if self.calls == 1:
            raise OSError("a file server was away")
        return value


@READERS
def test_a_transform_that_fails_once_is_an_error_at_once(tar_of, make_module, reader):
    tar, transform = tar_of(*((f"{number}.cls", b"1") for number in range(4))), FailsOnce()
    split = SplitConfig(tar, sampling="sequential", reader=reader)
    with pytest.raises(TransformError, match="a file server was away"):
        next(iter(make_module(split, transforms={"label": transform}).loader("train")))
    assert transform.calls == 1


def noise(value, rng):
    return rng.integers(2**62)


@READERS
def test_augmentation_never_comes_again(tar_of, make_module, reader):
    tar = tar_of(*((f"{number}.cls", b"1") for number in range(4)))
    split = SplitConfig(tar, sampling="sequential", reader=reader)
    loader = make_module(split, transforms={"label": noise}, batch_size=4).loader("train")
    drawn = []
    for epoch in (0, 1, 256, 2**8 + 1, 2**16, 2**32):
        loader.set_epoch(epoch)
        (batch,) = loader
        drawn += batch["label"].tolist()
    assert len(set(drawn)) == len(drawn)
    loader.set_epoch(256)
    (batch,) = loader
    assert np.array_equal(batch["label"], drawn[8:12])
