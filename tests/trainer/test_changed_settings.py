"""Settings of a data module that are changed between two fits, or two calls for a loader."""

from dataclasses import replace

import pytest
from fit_recorder import Recorder

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig

COUNTS = [4, 4]


@pytest.fixture
def others(pack_into, tmp_path):
    """Shards of other samples, as many."""
    return pack_into(tmp_path, COUNTS, "others")


def shards_of(model: Recorder) -> set[int]:
    return {shard for _, _, ids in model.steps for shard, _ in ids}


def test_a_second_fit_trains_on_the_shards_that_are_named_then(make_data, make_trainer, others):
    data, model = make_data(sampling="shuffled"), Recorder()
    make_trainer(max_epochs=1).fit(model, data)
    assert shards_of(model) == {0, 1, 2}
    data.splits["train"] = replace(data.splits["train"], urls=others)
    model = Recorder()
    make_trainer(max_epochs=1).fit(model, data)
    assert shards_of(model) == {0, 1}


def test_another_fold_is_read_as_soon_as_its_filter_is_set(make_data):
    data = make_data()
    folds: list[set[str]] = []
    for fold in range(2):
        keep = {"hash_of": "key", "of": 2, "parts": [fold]}
        data.splits["val"] = SplitConfig(data.splits["val"].urls, keep=keep)
        folds.append({key for batch in data.loader("val") for key in batch["__key__"]})
    assert folds[0]
    assert folds[1]
    assert not folds[0] & folds[1]


def test_the_same_trainer_takes_a_changed_loader_config(make_data, make_trainer):
    data, trainer = make_data(ShardDataModule, num_workers=1), make_trainer(max_epochs=1)
    pools: list[str] = []
    for pool in ("threads", "inline"):
        data.loader_config = replace(data.loader_config, pool=pool)
        trainer.validate(Recorder(), data, verbose=False)
        pools.append(data.val_dataloader().pool.describe().kind)
    assert isinstance(data.loader_config, LoaderConfig)
    assert pools == ["threads", "inline"]
