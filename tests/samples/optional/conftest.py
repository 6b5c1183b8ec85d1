"""Shards with optional members, modules that read them, and each way to a batch."""

import pytest
from webdataset.writer import TarWriter

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.readers import indexed
from lightning_shards.shards.storage.local import LocalStorage
from tests.samples.optional.lacking_shards import COUNTS, FIELDS, LACKING, png


@pytest.fixture
def urls(tmp_path):
    """Samples 0 to 11, of which some have an image alone."""
    shards, number = [], 0
    for shard, count in enumerate(COUNTS):
        shards.append(str(tmp_path / f"shard-{shard}.tar"))
        with TarWriter(shards[-1]) as writer:
            for _ in range(count):
                sample = {"__key__": f"{number:02d}", "png": png(number)}
                if number not in LACKING:
                    mask, text = png(100 + number), f"text {number}"
                    sample |= {"mask.png": mask, "cls": str(number), "txt": text}
                writer.write(sample)
                number += 1
    return shards


@pytest.fixture
def make_module(urls, tmp_path):
    def make(reader="indexed", split=None, **settings):
        options = {"sampling": "sequential", "remainder": "balanced", **(split or {})}
        return ShardDataModule(
            train=SplitConfig(**{"urls": urls, "reader": reader, **options}),
            **{
                "fields": FIELDS,
                "decode": {"image": "gray", "mask": "gray"},
                "batch_size": 4,
                "num_workers": 0,
                "loader": LoaderConfig(cache_dir=str(tmp_path / "cache")),
                **settings,
            },
        )

    return make


def refused(*_):
    raise AssertionError("a batch is made sample by sample")


@pytest.fixture(params=["stream", "indexed", "large members", "by samples"])
def reader(request, monkeypatch):
    """Each way to a batch: large members are read one by one."""
    if request.param == "by samples":
        monkeypatch.setattr(indexed, "can_decode", lambda _: False)
    elif request.param == "large members":
        monkeypatch.setattr(LocalStorage, "largest_ahead", 1)
    if request.param != "by samples":  # and no batch is made so in silence
        monkeypatch.setattr(indexed.WorkerBatches, "_batch_by_samples", refused)
    return "stream" if request.param == "stream" else "indexed"
