"""Bare shards become a data module with the fields of their first sample."""

from argparse import Namespace

import pytest
import torch

from lightning_shards.errors import ConfigError
from lightning_shards.profiling.measuring import take_batch
from lightning_shards.tools.bench_config import module_of_shards


@pytest.fixture
def batch_of(pack_shards, tmp_path):
    """The first batch of two samples, behind a shard that is empty."""
    urls = pack_shards([0, 4])

    def batch_of(**options):
        defaults = {"fields": [], "decode": [], "image_size": 5, "sampling": "resampled"}
        common = {"urls": urls, "batch_size": 2, "cache_dir": str(tmp_path)}
        return take_batch(module_of_shards(Namespace(**common | defaults | options))).batch

    return batch_of


def test_fields_are_those_of_the_first_sample_and_images_are_cut_to_one_size(batch_of):
    batch = batch_of()
    assert batch["png"].shape == (2, 3, 5, 5)
    assert batch["cls"].dtype == torch.int64


def test_images_of_size_0_are_not_decoded(batch_of):
    batch = batch_of(image_size=0)
    assert all(image.startswith(b"\x89PNG") for image in batch["png"])


def test_named_fields_and_decoders_are_taken(batch_of):
    batch = batch_of(
        fields=["image=jpg;png", "label=cls"],
        decode=["image=gray", "label=text"],
        sampling="sequential",
    )
    assert batch["image"].shape == (2, 1, 4, 4)
    assert batch["label"] == ["0", "1"]


def test_shards_without_samples_are_an_error(batch_of, pack_shards):
    with pytest.raises(ConfigError, match="--urls names 1 shard without a sample"):
        batch_of(urls=pack_shards([0], "none"))
