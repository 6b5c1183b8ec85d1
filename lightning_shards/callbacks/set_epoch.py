"""The callback that calls `set_epoch` wherever it exists; Lightning calls it on samplers only.

Here is also what all callbacks ask of loaders: what each is called, and whether it was made for
this rank.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn

from lightning_shards.config.splits import set_of
from lightning_shards.errors import ConfigError
from lightning_shards.loader import ShardLoader
from lightning_shards.plan.place import WAYS_TO_A_PLACE
from lightning_shards.progress import place_of, restart_train_loaders, train_loaders


class SetEpoch(pl.Callback):
    """Calls `set_epoch` on every train loader, sampler, batch sampler and dataset that has it.

    From the second epoch of a process on, the call comes before the iterator is made. In the first
    epoch Lightning makes the iterator before any hook runs, so workers may hold the wrong epoch.
    This matters when a run is resumed: the iterators of foreign loaders are then made again. A
    `ShardLoader` does not need this, because it looks up the epoch at its first batch.

    Workers of a foreign loader with `persistent_workers=True` keep the dataset that they were
    started with: only an epoch that this shares with them, as in shared memory, reaches them.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Repair the first epoch of this process: a resume within it runs no epoch hook."""
        require_own_places(trainer, train_loaders(trainer))
        told = self._set_epochs(trainer)
        if not told:
            rank_zero_warn(
                "SetEpoch() has nothing to do: no train loader, sampler or dataset of this fit has "
                "`set_epoch`; leave the callback out, or give one that method"
            )
        are_ours = all(isinstance(loader, ShardLoader) for loader in told)
        if trainer.current_epoch > 0 and not are_ours:
            restart_train_loaders(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the epoch that begins; repeated calls with the same epoch change nothing."""
        self._set_epochs(trainer)

    def _set_epochs(self, trainer: pl.Trainer) -> list[object]:
        """Set the epoch everywhere; the loaders that have a `set_epoch` somewhere."""
        told: list[object] = []
        for loader in train_loaders(trainer):
            for set_epoch in find_set_epochs(loader):
                set_epoch(trainer.current_epoch)
                told.append(loader)
        return told


def find_set_epochs(loader: object) -> Iterator[Callable[[int], object]]:
    """The `set_epoch` methods of a loader and of its parts; of a part with two roles twice."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(each, "sampler", None) for each in (loader, batch_sampler))
    for part in (loader, batch_sampler, *samplers, getattr(loader, "dataset", None)):
        set_epoch = getattr(part, "set_epoch", None)
        if callable(set_epoch):
            yield set_epoch


def labels_of(loaders: Sequence[object]) -> list[str]:
    """What to call each loader of an evaluation; empty where one alone is no set.

    A set has its name, as in ``web``, and any other of several loaders its number, as in
    ``loader1``.
    """
    sets = [set_of(loader.name) if isinstance(loader, ShardLoader) else "" for loader in loaders]
    are_sets = all(sets) and len(set(sets)) == len(sets)
    return sets if are_sets or len(sets) == 1 else [f"loader{i}" for i in range(len(sets))]


def require_own_places(trainer: Any, loaders: Iterable[object]) -> None:
    """Check that our loaders give the batches of this process; foreign loaders are not checked.

    Raises:
        ConfigError: A loader is for another rank, or for a world of another size.
    """
    own = place_of(trainer)
    for loader in loaders:
        if not isinstance(loader, ShardLoader):
            continue
        place = loader.place  # one made by hand knows of no nodes
        if (place.rank, place.world_size) != (own.rank, own.world_size):
            raise ConfigError(
                f"a loader gives the batches of rank {place.rank} of {place.world_size}, and this "
                f"process is rank {own.rank} of {own.world_size}, so that samples would be trained "
                f"on twice or never; {WAYS_TO_A_PLACE}"
            )
