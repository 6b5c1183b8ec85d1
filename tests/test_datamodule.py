"""The data module without a Trainer: its splits, their defaults, and clear errors."""

import copy
import pickle
from contextlib import nullcontext
from itertools import chain
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden

from lightning_shards import LoaderConfig, SplitConfig
from lightning_shards.errors import ConfigError, PlanError, ShardNotFoundError
from lightning_shards.workers.processes import ProcessPool


@pytest.fixture
def urls(pack_shards):
    return pack_shards([4, 3, 4])


def keys(loader):
    return [key for batch in loader for key in batch["__key__"]]


# --- what each split does -------------------------------------------------------------------------


def test_train_is_resampled_and_drops_what_fills_no_step(make_module, urls):
    loader = make_module(SplitConfig(urls)).loader("train", rank=0, world_size=2)
    assert loader.identity["sampling"] == "resampled"
    assert len(loader) == 11 // 4
    assert "__weight__" not in next(iter(loader))


@pytest.mark.parametrize("split", ["val", "test", "predict"])
@pytest.mark.parametrize("remainder", ["balanced", "pad"])
def test_evaluation_serves_each_sample_once_in_equal_steps(split, remainder, make_module, urls):
    module = make_module(**{split: SplitConfig(urls, remainder=remainder)})
    loaders = [module.loader(split, rank=rank, world_size=2) for rank in range(2)]
    assert len({len(loader) for loader in loaders}) == 1
    rows = [
        row
        for batch in chain(*loaders)
        for row in zip(batch["__key__"], batch["__weight__"], strict=True)
    ]
    assert sorted(key for key, weight in rows if weight) == [f"{n:06d}" for n in range(11)]


def test_a_peek_is_the_first_batch_and_disturbs_no_generator(make_module, urls):
    module, before = make_module(SplitConfig(urls)), torch.get_rng_state()
    peeked, first = module.peek(), next(iter(module.loader("train")))
    assert peeked["__key__"] == first["__key__"]
    assert torch.equal(peeked["__id__"], first["__id__"])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_split_overrides_what_the_module_says(make_module, urls):
    split = SplitConfig(
        urls,
        batch_size=3,
        fields={"image": "png"},
        decode={"image": "raw"},
        transforms={"image": len},
    )
    module = make_module(split, decode={"label": "text"}, transforms={"label": int}, val=split)
    batch = next(iter(module.loader("train")))
    assert list(batch) == ["__key__", "image", "__id__"]
    assert (batch["image"].dtype, len(batch["image"])) == (torch.int64, 3)


def test_a_batch_may_be_a_tuple_of_the_fields(make_module, urls):
    fields = {"label": "cls", "image": "png"}
    module = make_module(SplitConfig(urls), fields=fields, batch_format="tuple")
    label, image = next(iter(module.loader("train")))
    assert (tuple(label.shape), tuple(image.shape)) == ((2,), (2, 3, 4, 4))


class Crop:
    takes_bytes, backend = True, "pillow"

    def __call__(self, data):
        return len(data)


def test_a_transform_that_decodes_by_itself_gets_bytes(make_module, urls):
    settings = {"fields": {"image": "png"}, "transforms": {"image": Crop()}}
    module = make_module(SplitConfig(urls), **settings)
    assert next(iter(module.loader("train")))["image"].min() > 60  # a number for each file
    assert module.loader("train").identity["image_backend"] == "pillow"
    with pytest.raises(ConfigError, match=r"decodes by itself, and decode='gray' would do so befo"):
        make_module(SplitConfig(urls), decode={"image": "gray"}, **settings)


def test_a_transform_of_no_field_is_refused_unless_a_stage_may_make_it(make_module, urls):
    transforms = {"mask": abs}
    with pytest.raises(ConfigError, match=r"transforms names \['mask'\], and the fields are"):
        make_module(SplitConfig(urls, transforms=transforms))
    make_module(SplitConfig(urls, transforms=transforms, stages=[iter]))


def test_workers_are_started_as_configured(make_module, urls):
    config = LoaderConfig(prefetch_factor=5, multiprocessing_context="spawn", pin_memory=True)
    module = make_module(SplitConfig(urls), num_workers=3, loader=config)
    pool = module.loader("train").pool
    assert pool == ProcessPool(3, 5, "spawn", pin_memory=True, batch_bytes=pool.batch_bytes)


# --- errors ---------------------------------------------------------------------------------------


def test_fewer_samples_than_a_global_batch_are_an_error(make_module, urls):
    module = make_module(SplitConfig(urls), batch_size=4)
    with pytest.raises(PlanError, match=r"^train: 11 samples do not fill .* 3 ranks x 4.*lower"):
        module.loader("train", rank=2, world_size=3)


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (2, 2, "rank must be .*got 2"),
        (-1, 2, "rank must be .*got -1"),
        (0, 0, "world_size must be .*got 0"),
        (0, None, "rank=.* and world_size=.* go together.*give both"),
        (None, 2, "rank=.* and world_size=.* go together.*give both"),
    ],
)
def test_a_rank_outside_of_its_world_is_an_error(rank, world_size, message, make_module, urls):
    with pytest.raises(ConfigError, match=message):
        make_module(SplitConfig(urls)).loader("train", rank=rank, world_size=world_size)


def test_a_loader_of_no_rank_is_looked_at_when_it_is_iterated(make_module, urls, monkeypatch):
    loader = make_module(SplitConfig(urls)).loader("train")
    next(iter(loader))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    for of_a_process in (loader, loader.with_epoch(2), pickle.loads(pickle.dumps(loader))):
        with pytest.raises(ConfigError, match="2 processes"):
            next(iter(of_a_process))
    ranked = make_module(SplitConfig(urls)).loader("train", rank=0, world_size=1)
    assert len(keys(ranked)) == 10  # numbers that were given are believed


def test_setting_up_a_stage_looks_at_its_own_splits(make_module, urls):
    module = make_module(SplitConfig("/nowhere/0.tar"), test=SplitConfig(urls))
    module.setup("test")
    with pytest.raises(ShardNotFoundError):
        module.setup("fit")


def test_a_module_can_be_sent_to_another_process(make_module, urls):
    module = make_module(SplitConfig(urls), val=SplitConfig(urls))
    module.setup("fit")
    copied = pickle.loads(pickle.dumps(module))
    assert keys(copied.loader("train")) == keys(module.loader("train"))


def test_a_copy_without_a_validation_set_overrides_no_more_than_the_module(make_module, urls):
    module = make_module(SplitConfig(urls))
    spawned = pickle.loads(ForkingPickler.dumps(module))
    for each in (module, spawned, copy.deepcopy(module)):
        assert not is_overridden("val_dataloader", each)


@pytest.mark.parametrize("end", ["on_exception", "teardown"])
def test_a_failure_of_a_fit_that_died_is_not_that_of_the_next_one(
    end, make_module, urls, monkeypatch
):
    agreed = []
    monkeypatch.setattr("lightning_shards.datamodule.agree", lambda *facts: agreed.append(facts))
    monkeypatch.setattr("lightning_shards.datamodule.unless_told_to_end", lambda _: nullcontext())
    loader = SimpleNamespace(facts={"split": "train"}, close=lambda: None)
    module = make_module(SplitConfig("nowhere.tar"))
    module.trainer = SimpleNamespace(world_size=2, local_rank=0, loggers=[])
    module.setup("fit")  # the error is kept until all ranks meet
    getattr(module, end)(ArithmeticError() if end == "on_exception" else "fit")
    module.splits["train"] = SplitConfig(urls)
    monkeypatch.setattr(module, "_current_loader", lambda *_: loader)
    module.setup("fit")
    assert module.train_dataloader() is loader
    assert agreed == [({"split": "train"}, None)]
