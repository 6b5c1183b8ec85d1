"""What the readers guarantee, in the names of its tests."""

from itertools import chain

import numpy as np
import pytest
import torch

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError, TransformError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.samples.tensors import with_tensors

COUNTS = [5, 0, 9, 3, 12, 1]  # 30 samples
EPOCHS = 2
READERS = pytest.mark.parametrize("reader", ["indexed", "stream"])


def jitter(image, rng):
    return image + torch.from_numpy(rng.random(tuple(image.shape)))


def jitter_globally(image):
    return image + torch.rand(image.shape) + float(np.random.random())  # noqa: NPY002


def make(urls, tmp_path, *, transform=jitter, **split):
    return ShardDataModule(
        train=SplitConfig(
            urls,
            **{"sampling": "shuffled", "shuffle_run": 2, "shuffle_block": 8, "reader": "indexed"}
            | split,
        ),
        fields={"image": "png", "label": "cls"},
        decode={"image": "gray"},
        transforms={"image": transform},
        batch_size=2,
        num_workers=0,
        seed=7,
        loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
    )


def batches(module, epochs=EPOCHS, *, rank=0, world_size=1):
    loader = module.loader("train", rank=rank, world_size=world_size)
    try:
        return list(chain.from_iterable(iter(loader) for _ in range(epochs)))
    finally:
        loader.close()


def as_bytes(batch):
    parts = [batch["image"], batch["label"], batch["__id__"], batch.get("__weight__")]
    values = [part.numpy().tobytes() for part in parts if part is not None]
    return [*values, ",".join(batch["__key__"]).encode()]


def same(first, second):
    return list(map(as_bytes, first)) == list(map(as_bytes, second))


@pytest.fixture
def urls(pack_shards):
    return pack_shards(COUNTS)


SAMPLINGS = ["shuffled", "resampled", "sequential"]
REMAINDERS = ["drop", "pad", "balanced"]


@pytest.mark.parametrize("transform", [jitter, jitter_globally])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_batches_are_equal_byte_for_byte_under_any_number_of_workers(
    urls, tmp_path, sampling, remainder, transform
):
    module = make(urls, tmp_path, transform=transform, sampling=sampling, remainder=remainder)
    expected = batches(module, world_size=4, rank=1)
    source = module.loader("train", rank=1, world_size=4).source
    for num_workers in (1, 2, 3, 8):
        places = [Place(1, 4).with_worker(worker, num_workers) for worker in range(num_workers)]
        shares = [source.batches(place, Cursor()) for place in places]
        made = [next(shares[step % num_workers]).batch for step in range(len(expected))]
        merged = list(map(with_tensors, made))
        assert same(expected, merged), num_workers


@pytest.mark.parametrize("remainder", ["drop", "pad"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_global_steps_are_equal_as_sets_under_any_world_size(urls, tmp_path, sampling, remainder):
    steps_of = {}
    for world_size in (1, 2, 3, 4, 6, 12):
        module = make(
            urls, tmp_path, sampling=sampling, remainder=remainder, batch_size=12 // world_size
        )
        ranks = [batches(module, 1, rank=rank, world_size=world_size) for rank in range(world_size)]
        steps_of[world_size] = [
            sorted(
                (tuple(sample), image.numpy().tobytes())
                for batch in step
                for sample, image in zip(batch["__id__"].tolist(), batch["image"], strict=True)
            )
            for step in zip(*ranks, strict=True)
        ]
    assert all(steps == steps_of[1] for steps in steps_of.values())


@READERS
def test_samples_are_those_that_the_shards_hold(urls, tmp_path, reader):
    settings = {"sampling": "sequential", "reader": reader, "remainder": "pad"}
    module = make(urls, tmp_path, transform=torch.clone, **settings)
    starts = np.cumsum([0, *COUNTS])
    for batch in batches(module, 1):
        numbers = [int(starts[shard] + sample) for shard, sample in batch["__id__"].tolist()]
        assert batch["__key__"] == [f"{number:06d}" for number in numbers]
        assert batch["label"].tolist() == [number % 10 for number in numbers]
        assert batch["image"][:, 0, 0, 0].tolist() == numbers


def test_the_buffer_of_a_stream_is_no_setting_of_the_indexed_reader(urls, tmp_path):
    module = make(urls, tmp_path, sampling="resampled", reader="auto", shuffle_buffer=100)
    with pytest.raises(ConfigError, match=r"train: shuffle_buffer=100 is.* take reader='stream'"):
        module.loader("train")
    make(urls, tmp_path, sampling="resampled", reader="stream", shuffle_buffer=9).loader("train")


def test_shards_without_ranges_are_refused_by_the_indexed_reader(tmp_path):
    module = make("pipe:cat a.tar", tmp_path, sampling="resampled", dataset_size=10)
    module.allow_unsafe = ["pipe"]
    with pytest.raises(ConfigError, match=r"by their offsets, and the split has pipe:cat.* copy"):
        module.loader("train")


def test_a_seek_reads_nothing_of_what_comes_before(urls, tmp_path, monkeypatch):
    module = make(urls, tmp_path, sampling="sequential", shuffle_block=1)
    source = module.loader("train").source
    opened = []
    monkeypatch.setattr(
        OpenShards, "_open", lambda self, shard, plain=OpenShards._open: (
            opened.append(shard), plain(self, shard)
        )[1]
    )  # fmt: skip
    next(source.batches(Place(), Cursor(0, 28)))
    assert opened == [4, 5]


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
