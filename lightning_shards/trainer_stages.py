"""The splits that a trainer reads in each of its stages."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from inspect import getattr_static
from typing import Any, Final, TypeVar, cast

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import RunningStage

from lightning_shards.config.sets import SplitName, kind_of
from lightning_shards.config.splits import Split

_Method = TypeVar("_Method", bound=Callable[..., Any])

STAGE_SPLITS: Final[dict[str, tuple[Split, ...]]] = {
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("predict",),
}
"""By the name that Lightning gives to `setup` and `teardown`."""

_READ_NOW: Final[dict[RunningStage | None, Split]] = {
    RunningStage.TRAINING: "train",
    RunningStage.SANITY_CHECKING: "val",
    RunningStage.VALIDATING: "val",
    RunningStage.TESTING: "test",
    RunningStage.PREDICTING: "predict",
}


def trainer_stage(trainer: pl.Trainer | None) -> str | None:
    """The stage that a trainer was asked for; None before that, and without a trainer."""
    function = trainer.state.fn if trainer is not None else None
    return function.value if function is not None else None


def splits_of(named: Mapping[SplitName, object], kinds: Collection[str]) -> list[SplitName]:
    """Those splits and sets of these kinds that are configured, in the order of their loaders."""
    return [name for name, config in named.items() if config and kind_of(name) in kinds]


def split_read_by(trainer: pl.Trainer) -> Split:
    """The split whose batches a trainer reads at this moment."""
    return _READ_NOW[trainer.state.stage]


def only_with_val(method: _Method) -> _Method:
    """The method `val_dataloader`, which Lightning does not find while no `val` is configured.

    Lightning requires a `validation_step` of a model where it finds the method. It is decided
    whenever the method is looked up, because a split may be added or removed at any time.
    """
    return cast("_Method", _MethodOfVal(method))


class _MethodOfVal:
    """Finds Lightning's own method, which it takes for none, if there is no `val`."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, module: Any, module_class: type) -> Any:
        is_found_by_super = getattr_static(module_class, "val_dataloader") is not self
        if module is None or is_found_by_super or splits_of(module.splits, ["val"]):
            return cast("Any", self._method).__get__(module, module_class)
        return partial(pl.LightningDataModule.val_dataloader, module)
