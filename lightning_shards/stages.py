"""What a trainer reads in each of its stages: splits, and parts of combined batches.

A dict or a list of loaders is combined by the Trainer, or by a CombinedLoader.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NoReturn, cast

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities import CombinedLoader
from torch.utils._pytree import tree_flatten, tree_unflatten

from lightning_shards.config.splits import Split, SplitName, kind_of
from lightning_shards.errors import ConfigError
from lightning_shards.loader import ShardLoader
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


def split_read_by(trainer: pl.Trainer) -> Split:
    """The split whose batches a trainer reads at this moment."""
    return _READ_NOW[trainer.state.stage]


Change = Callable[[Any, SplitName | None], Any]


def change_parts(
    trainer: Any, batch: Any, dataloader_idx: int, read: Sequence[SplitName], change: Change
) -> Any:
    """A batch whose parts that come from a `ShardLoader` are changed, and no others.

    The batch of a loader that stands alone is changed, whatever loader that is; so is a batch of
    combined loaders that a hook has given another shape.

    Args:
        trainer: Reads the batch.
        batch: Is on the device.
        dataloader_idx: Position of its loader, where loaders are read one after the other.
        read: The splits and sets that the trainer reads in this stage, in order.
        change: Makes the new part of a part and the name of its split, None without one.

    Raises:
        ConfigError: None of the loaders that are combined is a `ShardLoader`, and there are shards
            to be read.
    """
    combined = _read_loader(trainer)
    if combined is None:
        return batch  # no loader gave it: it is an example input, for instance
    default = read[min(dataloader_idx, len(read) - 1)] if read else None
    loaders, spec = tree_flatten(combined.iterables)
    has_ours = any(isinstance(loader, ShardLoader) for loader in loaders)
    is_turn = cast("Any", combined)._mode == "sequential"  # noqa: SLF001 Lightning names no other way
    if is_turn or spec.is_leaf():
        loader = loaders[dataloader_idx if is_turn else 0]
        is_changed = isinstance(loader, ShardLoader) or not has_ours
        return change(batch, _split_of(loader, default)) if is_changed else batch
    try:
        parts = spec.flatten_up_to(batch)
    except ValueError:  # a hook has given it another shape
        return change(batch, default)
    if not has_ours and default is not None:
        _refuse(loaders)
    for number, (loader, part) in enumerate(zip(loaders, parts, strict=True)):
        if isinstance(loader, ShardLoader) and part is not None:  # None: exhausted (max_size)
            parts[number] = change(part, _split_of(loader, default))
    return tree_unflatten(parts, spec)


def loaders_in(given: Any) -> list[Any]:
    """The loaders that `train_dataloader` has returned, whatever they are in."""
    combined = given if isinstance(given, CombinedLoader) else CombinedLoader(given)
    return list(combined.flattened)


def _refuse(loaders: Sequence[Any]) -> NoReturn:
    raise ConfigError(
        "device_transforms are for batches of shards, and none of the loaders that are combined in "
        f"this batch is a ShardLoader, but {[type(loader).__name__ for loader in loaders]}; "
        "combine what super() gives, without a wrapper, or leave device_transforms out and change "
        "batches in on_after_batch_transfer of the LightningModule"
    )


def _read_loader(trainer: Any) -> CombinedLoader | None:
    """The loader that is read; None before its first batch, also where it is there already."""
    is_training = trainer.state.stage is RunningStage.TRAINING
    loop = trainer.fit_loop if is_training else evaluation_loop(trainer)
    fetcher = loop._data_fetcher  # noqa: SLF001 as above
    return loop._combined_loader if fetcher is not None and fetcher.fetched else None  # noqa: SLF001 as above


def _split_of(loader: Any, default: SplitName | None) -> SplitName | None:
    return (loader.name if isinstance(loader, ShardLoader) else "") or default
