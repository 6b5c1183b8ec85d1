"""What a trainer reads in each of its stages."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities import CombinedLoader

from lightning_shards.config.splits import Split, SplitName, kind_of
from lightning_shards.errors import ConfigError
from lightning_shards.progress import evaluation_loop

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


def split_of_batch(
    trainer: Any, dataloader_idx: int, named: Mapping[SplitName, object]
) -> SplitName | None:
    """The split or set that a trainer has read a batch of; None if it is an example input.

    Args:
        trainer: Reads the batch.
        dataloader_idx: Position of its loader, where loaders are read one after the other.
        named: All splits and sets.

    Raises:
        ConfigError: It is made of the batches of several loaders.
    """
    combined: Any = _read_loader(trainer)
    if combined is None:
        return None
    loaders = combined.flattened
    if len(loaders) > 1 and combined._mode != "sequential":  # noqa: SLF001 Lightning names no other way
        raise ConfigError(
            "device_transforms are for batches of one loader, and this batch combines those of "
            f"{[type(loader).__name__ for loader in loaders]}; leave device_transforms out, and "
            "change batches in on_after_batch_transfer of the LightningModule"
        )
    read = splits_of(named, [_READ_NOW[trainer.state.stage]])
    return read[min(dataloader_idx, len(read) - 1)] if read else ""


def loaders_in(given: Any) -> list[Any]:
    """The loaders that `train_dataloader` has returned, whatever they are in."""
    combined = given if isinstance(given, CombinedLoader) else CombinedLoader(given)
    return list(combined.flattened)


def _read_loader(trainer: Any) -> CombinedLoader | None:
    """The loader that is read; None before its first batch, also where it is there already."""
    is_training = trainer.state.stage is RunningStage.TRAINING
    loop = trainer.fit_loop if is_training else evaluation_loop(trainer)
    fetcher = loop._data_fetcher  # noqa: SLF001 as above
    return loop._combined_loader if fetcher is not None and fetcher.fetched else None  # noqa: SLF001 as above
