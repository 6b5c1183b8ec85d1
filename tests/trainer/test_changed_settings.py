"""Settings of a data module that are changed between two fits, or two calls for a loader."""

from dataclasses import replace

import pytest
from fit_recorder import Recorder

from lightning_shards import ConfigError, LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards import datamodule as module

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


@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_list_is_read_again_when_it_has_changed(make_data, tmp_path, is_mixed):
    listed = tmp_path / "listed.txt"
    data = make_data(batch_size=1)
    keys = {key for batch in data.loader("val") for key in batch["__key__"]}
    config = SplitConfig(data.splits["val"].urls, sampling="sequential", exclude=str(listed))
    if is_mixed:
        part = {"urls": config.urls, "weight": 1, "sampling": "sequential"}
        part |= {"exclude": str(listed)}
        config = SplitConfig(mix={"part": part}, epoch_of="part")
    data.splits["train"] = config
    for key in sorted(keys)[:2]:
        listed.write_text(key + "\n")
        assert keys - {key for batch in data.loader("train") for key in batch["__key__"]} == {key}
    listed.unlink()
    with pytest.raises(ConfigError, match=r"train\.mix\.part" if is_mixed else "listed"):
        data.loader("train")


def test_shards_are_found_once_while_nothing_of_theirs_is_changed(make_data, monkeypatch):
    find, found = module.find_shards, list[str]()

    def noted(data, split, **more):
        found.append(split)
        return find(data, split, **more)

    monkeypatch.setattr(module, "find_shards", noted)
    data = make_data()
    for batch_size in (2, 1, 2):  # as a tuner tries
        data.batch_size = batch_size
        data.loader("train")
    assert found == ["train"]


def test_the_same_trainer_takes_a_changed_loader_config(make_data, make_trainer):
    data, trainer = make_data(ShardDataModule, num_workers=1), make_trainer(max_epochs=1)
    pools: list[str] = []
    for pool in ("threads", "inline"):
        data.loader_config = replace(data.loader_config, pool=pool)
        trainer.validate(Recorder(), data, verbose=False)
        pools.append(data.val_dataloader().pool.describe().kind)
    assert isinstance(data.loader_config, LoaderConfig)
    assert pools == ["threads", "inline"]
