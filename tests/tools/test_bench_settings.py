"""Which settings `bench` tries, and that a data module takes them."""

import lightning.pytorch as pl
import pytest

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.tools.bench_settings import (
    Setting,
    apply_setting,
    current_setting,
    list_settings,
)
from lightning_shards.workers.threads import ThreadPool


@pytest.fixture
def module(pack_shards, tmp_path):
    return ShardDataModule(
        train=SplitConfig(pack_shards([5, 4])),
        fields={"label": "cls"},
        batch_size=2,
        num_workers=3,
        loader=LoaderConfig(threads_per_worker=2, prefetch_factor=4, cache_dir=str(tmp_path)),
    )


def test_settings_reach_the_loader_and_keep_the_rest_of_it(module):
    assert current_setting(module) == Setting("processes", 3, 2)
    apply_setting(module, Setting("threads", 5))
    assert current_setting(module) == Setting("threads", 5)
    assert module.loader("train").pool == ThreadPool(5, prefetch_factor=4, most_batches=16)
    apply_setting(module, Setting("inline", 0))
    assert current_setting(module) == Setting("inline", 0)


def test_settings_are_listed_once_and_threads_have_no_threads():
    assert list_settings(Setting("processes", 4, 2), [0, 2, 2], ["processes", "threads"], []) == [
        Setting("inline", 0),
        Setting("processes", 2, 2),
        Setting("threads", 2),
    ]
    assert list_settings(Setting("inline", 0), [1], ["processes"], [1, 3]) == [
        Setting("processes", 1),
        Setting("processes", 1, 3),
    ]


def test_other_data_modules_are_told_their_number_of_workers_if_they_have_one():
    data = pl.LightningDataModule()
    assert list_settings(current_setting(data), [0, 1], ["threads"], []) == [Setting("own", -1)]
    apply_setting(data, Setting("own", -1))
    assert not hasattr(data, "num_workers")
    data.num_workers = 2
    assert current_setting(data) == Setting("own", 2)
    settings = list_settings(current_setting(data), [0, 1], ["threads"], [])
    assert settings == [Setting("own", 0), Setting("own", 1)]
    apply_setting(data, settings[1])
    assert data.num_workers == 1


def test_settings_are_ordered_by_what_they_take():
    settings = [
        Setting("inline", 0),
        Setting("threads", 1),
        Setting("processes", 1),
        Setting("threads", 2),
        Setting("processes", 1, 2),
        Setting("processes", 2),
        Setting("threads", 3),
    ]
    costs = [setting.cost for setting in settings]
    assert costs == sorted(set(costs))
    assert [setting.name for setting in settings[:5]] == [
        "0 (inline)",
        "1 thread",
        "1 process",
        "2 threads",
        "1 process x 2 threads",
    ]
    assert settings[5].name == "2 processes"
