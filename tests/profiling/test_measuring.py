"""What is measured, and when it begins and ends."""

from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError
from lightning_shards.profiling.measuring import (
    OneBatch,
    TimedLoader,
    Timing,
    _Meter,
    measure_loader,
    take_batch,
)
from lightning_shards.samples.stage_clock import LoaderTimes
from lightning_shards.workers.threads import ThreadPool

AT_ONCE = Timing(0.0, 0.0, 1e9)
"""Ends with the first batch after the warm-up."""


@pytest.fixture
def module(pack_shards, tmp_path):
    return ShardDataModule(
        train=SplitConfig(pack_shards([5, 4]), sampling="shuffled"),
        fields={"label": "cls"},
        batch_size=2,
        num_workers=0,
        loader=LoaderConfig(cache_dir=str(tmp_path)),
    )


def batches_until_the_end(loader, span):
    """How many batches were measured, and how many came."""
    meter = _Meter(loader, span)
    for _ in range(1000):
        loader.times.batches += 1
        loader.times.samples += 5
        if meter.ends_with_this():
            totals = meter.window().totals
            assert totals.samples == 5 * totals.batches
            return totals.batches, loader.times.batches
    raise AssertionError("it does not end")


def test_a_measurement_begins_after_the_first_batch():
    assert batches_until_the_end(SimpleNamespace(times=LoaderTimes()), AT_ONCE) == (1, 2)


def test_what_workers_had_kept_ready_is_left_out():
    loader = SimpleNamespace(times=LoaderTimes(), pool=ThreadPool(3, prefetch_factor=4))
    assert batches_until_the_end(loader, AT_ONCE) == (1, 14)


def test_a_warm_up_has_a_limit_however_much_was_kept_ready():
    loader = SimpleNamespace(times=LoaderTimes(), pool=ThreadPool(3, prefetch_factor=400))
    assert batches_until_the_end(loader, Timing(0.0, 0.0, 0.0)) == (1, 2)


def test_nothing_counts_before_a_batch_has_come():
    assert not _Meter(SimpleNamespace(times=LoaderTimes()), Timing(0.0, 0.0, 0.0)).ends_with_this()


def test_the_device_is_waited_for_where_the_measurement_begins_and_ends():
    waits = []
    loader = SimpleNamespace(times=LoaderTimes(batches=1))
    meter = _Meter(loader, AT_ONCE, lambda: waits.append(loader.times.batches))
    while not meter.ends_with_this():
        loader.times.batches += 1
    assert waits == [1, 2]


def test_a_loader_is_measured_over_the_ends_of_epochs_and_closed(module, monkeypatch):
    loader = module.loader("train")
    closed = []
    monkeypatch.setattr(module, "loader", lambda _: loader)
    monkeypatch.setattr(loader, "close", lambda: closed.append(loader.times.batches))
    window = measure_loader(module, Timing.of(0.05))
    assert window.totals.batches > len(loader)
    assert window.totals.wall_s >= 0.05
    assert window.stages["decode"] <= window.totals.produce_s
    assert window.totals.samples == 2 * window.totals.batches
    assert closed[-1:] == [loader.times.batches]


def test_the_batch_in_memory_is_the_loaders_first_with_its_length(module):
    one = take_batch(module)
    loader = module.loader("train")
    first = next(iter(loader))
    assert (one.samples, one.length) == (2, len(loader))
    assert one.batch["__key__"] == first["__key__"]
    assert [batch is one.batch for batch in one] == [True] * len(loader)
    assert (one.times.batches, one.times.samples) == (len(loader), 2 * len(loader))


def test_any_loader_is_timed_and_its_samples_counted():
    data = torch.utils.data.DataLoader(torch.zeros(5), batch_size=3)
    loader = TimedLoader(data)
    assert [batch.shape for batch in loader] == [(3,), (2,)]
    assert len(loader) == loader.times.batches == 2
    assert loader.times.samples == 5
    assert loader.times.wait_s > 0


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.parametrize("is_dict", [False, True])
def test_several_loaders_give_their_batches_together(is_dict):
    long, short = (torch.utils.data.DataLoader(torch.zeros(n), batch_size=2) for n in (6, 4))
    combined = CombinedLoader({"a": long, "b": short}, "min_size")
    loader = TimedLoader({"a": long, "b": short} if is_dict else combined)
    steps = 3 if is_dict else 2
    assert len(loader) == steps
    assert [batch.keys() for batch in loader] == [{"a": 0, "b": 0}.keys()] * steps


def test_a_loader_that_gives_nothing_is_an_error():
    data = pl.LightningDataModule()
    data.train_dataloader = lambda: iter([])
    with pytest.raises(ConfigError, match="gives no batch"):
        take_batch(data)


def test_one_batch_has_the_length_it_was_given():
    assert len(OneBatch("batch", 3, 7)) == len(list(OneBatch("batch", 3, 7))) == 7
