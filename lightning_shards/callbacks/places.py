"""The check that a loader passed by hand was made for this rank, before its first batch."""

from collections.abc import Iterable
from typing import Any

from lightning_shards.errors import ConfigError
from lightning_shards.loader import WAYS_TO_A_PLACE, ShardLoader
from lightning_shards.progress import place_of


def require_own_places(trainer: Any, loaders: Iterable[object]) -> None:
    """Check that our loaders give the batches of this process; foreign loaders are not checked.

    Raises:
        ConfigError: A loader is for another rank, or for a world of another size.
    """
    own = place_of(trainer)
    for loader in loaders:
        if isinstance(loader, ShardLoader) and loader.place != own:
            place = loader.place
            raise ConfigError(
                f"a loader gives the batches of rank {place.rank} of {place.world_size}, and this "
                f"process is rank {own.rank} of {own.world_size}, so that samples would be trained "
                f"on twice or never; {WAYS_TO_A_PLACE}"
            )
