"""What callbacks say of loaders: what each is called, and that it was made for this rank."""

from collections.abc import Iterable, Sequence
from typing import Any

from lightning_shards.config.sets import set_of
from lightning_shards.errors import ConfigError
from lightning_shards.loader import ShardLoader
from lightning_shards.plan.place import WAYS_TO_A_PLACE
from lightning_shards.progress import place_of


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
