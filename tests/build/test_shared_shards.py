"""Shards that are trained on and evaluated, which a run warns of once."""

import logging

import pytest

from lightning_shards import SplitConfig


@pytest.fixture
def warnings_of(make_module, caplog):
    """What the log warns of when train and another split are found, one after the other."""

    def found(train, val):
        module = make_module(train, val=val)
        with caplog.at_level(logging.WARNING, "lightning_shards.build.sources"):
            for name in ("train", "val", "val", "train"):
                module.source(name)
        return [record.getMessage() for record in caplog.records]

    return found


def test_shards_of_train_and_an_evaluation_are_told_once(pack_shards, warnings_of):
    urls = pack_shards([2, 2, 2])
    [message] = warnings_of(SplitConfig(urls[:2]), val=SplitConfig(urls[1:]))
    assert message.startswith(f"val and train read the same 1 shard, first {urls[1]}, so")
    assert "keep or exclude" in message
    assert warnings_of(SplitConfig(urls[:1]), val=SplitConfig(urls[2:])) == [message]


@pytest.mark.parametrize("kept", ["train", "val"])
def test_where_one_of_them_leaves_samples_out_nothing_is_said(pack_shards, warnings_of, kept):
    urls = pack_shards([6])
    splits = {"train": SplitConfig(urls), "val": SplitConfig(urls)}
    splits[kept] = SplitConfig(urls, keep={"hash_of": "key", "of": 2, "parts": [0]})
    assert warnings_of(splits["train"], val=splits["val"]) == []
