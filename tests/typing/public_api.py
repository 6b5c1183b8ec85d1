"""The public API as its users write it; pyright reads this file, nothing runs it."""

from collections.abc import Iterator
from typing import Any, assert_type

import lightning.pytorch as pl

from lightning_shards import (
    Cursor,
    DataThroughputMonitor,
    EpochDigest,
    EpochPlan,
    LoaderConfig,
    Place,
    SetEpoch,
    ShardDataModule,
    ShardError,
    ShardIndex,
    ShardLoader,
    SplitConfig,
    expand_urls,
    plan_epoch,
)


def use_everything() -> None:
    """Never called: doctest imports this file."""
    module = ShardDataModule(
        SplitConfig("train-{000..009}.tar", transforms={"image": abs}),
        val=SplitConfig(["val.tar"], sampling="sequential", remainder="balanced"),
        fields={"image": "jpg;png", "label": "cls"},
        loader=LoaderConfig(multiprocessing_context="spawn", pin_memory=False),
    )
    trainer = pl.Trainer(callbacks=[SetEpoch(), EpochDigest(), DataThroughputMonitor()])
    trainer.fit(pl.LightningModule(), datamodule=module)

    loader = module.loader("train", rank=1, world_size=4)
    assert_type(loader, ShardLoader)
    assert_type(loader.with_epoch(3).with_length(3), ShardLoader)
    assert_type(len(loader), int)
    assert_type(iter(loader), Iterator[dict[str, Any] | tuple[Any, ...]])
    assert_type(loader.state_dict(), dict[str, int | str])
    loader.set_epoch(3)
    loader.load_state_dict(loader.state_dict())

    plan = plan_epoch(10, batch_size=2, world_size=4, remainder="balanced")
    assert_type(plan, EpochPlan)
    assert_type(plan.sizes(0), tuple[int, ...])
    assert_type(expand_urls("a::b"), list[str])
    assert_type(ShardIndex(("a.tar",), None).samples, int | None)
    assert_type(Place(1, 2).with_worker(0, 3), Place)
    assert_type(Cursor(epoch=1).samples, int)

    for name in module.eval_names("val"):
        assert_type(module.loader(name), ShardLoader)
    ShardDataModule(val_sets={"web": SplitConfig("web.tar")}, fields={"label": "cls"})
    module.eval_names("train")  # pyright: ignore[reportArgumentType]  # it is none of evaluation
    SplitConfig("a.tar", sampling="random")  # pyright: ignore[reportArgumentType]  # no such sampling
    SplitConfig("a.tar", "shuffled", batchsize=3)  # pyright: ignore[reportCallIssue]  # misspelt
    assert_type(str(ShardError("is an Exception")), str)
