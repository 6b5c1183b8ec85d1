"""Fields that are lists of members: `*.txt` takes all of a sample whose suffixes end so."""

import numpy as np
import pytest
import torch

from lightning_shards import DecodeResize, PadCollate, ShardDataset, ShardWriter, SplitConfig
from lightning_shards.errors import ConfigError, MissingFieldError

READERS = pytest.mark.parametrize("reader", ["indexed", "stream"])
NAMES = ["a", "b"]
# not in the order of their names, of which the last is the only one with two digits
NUMBERS = [1, 0, 10]


@pytest.fixture
def shard(tmp_path):
    with ShardWriter(tmp_path / "shards", cache_dir=tmp_path / "cache") as writer:
        for key in NAMES:
            numbers = NUMBERS[: 3 if key == "a" else 2]
            frames = {f"{number}.npy": np.full(2, number) for number in numbers}
            texts = {f"{number}.txt": f"{key}{number}" for number in numbers}
            boxes = {"0.json": {"box": 5}} if key == "a" else {}
            writer.write({"__key__": key, "npy": np.array(7)} | frames | texts | boxes)
    return writer.urls


def stacked(frames):
    return np.stack(frames[:2])


@READERS
def test_a_field_is_the_list_of_its_members_in_the_order_of_names(shard, make_module, reader):
    split = SplitConfig(shard, sampling="sequential", reader=reader)
    fields = {"frames": "*.npy", "texts": "*.txt", "cover": "npy"}
    module = make_module(split, fields=fields, transforms={"frames": stacked})
    (batch,) = module.loader("train")
    assert batch["texts"] == [["a0", "a1", "a10"], ["b0", "b1"]]
    assert batch["frames"].tolist() == [[[0, 0], [1, 1]]] * 2
    assert batch["cover"].tolist() == [7, 7]


@READERS
def test_lists_of_several_lengths_can_be_padded(shard, make_module, reader):
    split = SplitConfig(shard, sampling="sequential", reader=reader)
    module = make_module(split, fields={"frames": "*.npy"}, collate_fn=PadCollate(["frames"]))
    (batch,) = module.loader("train")
    assert batch["frames"][:, :, 0].tolist() == [[0, 1, 10], [0, 1, 0]]
    assert batch["frames_length"].tolist() == [3, 2]


@READERS
def test_pictures_of_a_list_are_tensors(tmp_path, make_module, write_tar, reader):
    ppm = b"P6 1 1 255 " + bytes([1, 2, 3])
    tar = str(write_tar(tmp_path / "x.tar", [("0.left.ppm", ppm), ("0.right.ppm", ppm)]))
    split = SplitConfig(tar, sampling="sequential", reader=reader)
    (batch,) = make_module(split, fields={"views": "*.ppm"}, batch_size=1).loader("train")
    assert [view.shape for view in batch["views"][0]] == [(3, 1, 1)] * 2
    assert all(map(torch.is_tensor, batch["views"][0]))


@READERS
def test_a_sample_without_members_needs_an_optional_list(shard, make_module, reader):
    split = SplitConfig(shard, sampling="sequential", reader=reader)
    fields = {"boxes": "*.json", "cover": "npy"}
    with pytest.raises(MissingFieldError, match=r"one of \['\*\.json'\], found \['0\.npy'"):
        list(make_module(split, fields=fields).loader("train"))
    fields["boxes"] += "?"
    (batch,) = make_module(split, fields=fields, defaults={"boxes": []}).loader("train")
    assert batch["boxes"] == [[{"box": 5}], []]


def test_a_dataset_gives_lists_and_defaults(shard, tmp_path):
    dataset = ShardDataset(
        shard,
        fields={"texts": "*.txt", "boxes": "*.json?"},
        defaults={"boxes": []},
        cache_dir=str(tmp_path / "cache"),
    )
    assert [sample["texts"] for sample in dataset] == [["a0", "a1", "a10"], ["b0", "b1"]]
    assert [sample["boxes"] for sample in dataset] == [[{"box": 5}], []]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fields": {"x": "*.jpg;png"}}, "or all as"),
        ({"fields": {"x": "*jpg"}}, "or all as"),
        ({"fields": {"x": "*.bin"}}, r"members '\*.bin', a suffix without a decoder"),
        (
            {"fields": {"x": "*.jpg"}, "transforms": {"x": DecodeResize(size=8)}},
            r"set decode: \{x: raw\}",
        ),
    ],
)
def test_lists_that_cannot_be_made_are_refused(make_module, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_module("x.tar", **settings)
