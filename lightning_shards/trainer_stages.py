"""The splits that a trainer reads in each of its stages."""

from collections.abc import Collection, Mapping
from typing import Final

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import RunningStage

from lightning_shards.config.sets import SplitName, kind_of
from lightning_shards.config.splits import Split

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
