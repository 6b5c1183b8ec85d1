"""`batch_keys`: which reserved entries a batch has, and who needs them."""

import pytest

from lightning_shards import PadCollate, SplitConfig
from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Cursor, Place


@pytest.mark.parametrize("collate_fn", [None, PadCollate(["image"])], ids=["built in", "padded"])
@pytest.mark.parametrize("reader", ["indexed", "stream"])
@pytest.mark.parametrize("keys", [[], ["__weight__", "__key__"], None])
def test_a_batch_has_the_entries_that_are_named(pack_shards, make_module, reader, keys, collate_fn):
    split = SplitConfig(pack_shards([5]), sampling="sequential", reader=reader)
    module = make_module(
        split,
        val=SplitConfig(split.urls, reader=reader, batch_keys=["__weight__"]),
        fields={"image": "png", "label": "cls"},
        batch_keys=keys,
        collate_fn=collate_fn,
    )
    wanted = ["__key__", "__id__"] if keys is None else sorted({*keys} - {"__weight__"})
    for batch in module.loader("train"):
        assert sorted(name for name in batch if name.startswith("__")) == sorted(wanted)
    (first, *_) = module.loader("val")
    assert [name for name in first if name.startswith("__")] == ["__weight__"]


@pytest.mark.parametrize(
    ("split", "settings", "message"),
    [
        (
            {"on_bad_sample": "substitute", "max_bad": 1},
            {},
            "on_bad_sample='substitute' of 'train' says by `__weight__`",
        ),
        ({"batch_keys": ["image"]}, {}, r"batch_keys must be one of \['__key__', '__id__', '__we"),
        ({}, {"batch_format": "tuple"}, "of 'train' has no effect with batch_format='tuple'"),
    ],
)
def test_settings_that_would_lose_weights_are_refused(make_module, split, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_module(SplitConfig("a.tar", **split), **{"batch_keys": []} | settings)


def test_a_balanced_split_without_weights_may_not_repeat(pack_shards, make_module):
    split = SplitConfig(pack_shards([5]), remainder="balanced", sampling="sequential")
    module = make_module(split, batch_size=1, fields={"image": "png"}, batch_keys=[])
    assert len(list(module.loader("train"))) == 5
    message = r"^remainder='balanced' repeats 1 sample to give each of 2 ranks one at each step"
    with pytest.raises(ConfigError, match=message):
        module.loader("train", rank=0, world_size=2)
    # whoever makes batches without a check of the plan
    source = module.source("train")
    with pytest.raises(ConfigError, match="holds a sample of `__weight__` 0"):
        for _ in source.batches(Place(1, 2), Cursor()):
            pass
