"""How much batches read at once beside what is fetched ahead."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from lightning_shards.readers.reading import Reading

MIB = 2**20
AHEAD = SimpleNamespace(most_batches=lambda: 3)


@dataclass
class FakeStorages:
    """Storages of which all is there that was to be fetched, or not."""

    is_there: bool = False

    def has_fetched_ahead(self):
        return self.is_there


def test_as_much_is_read_at_once_as_of_local_files_when_all_is_there():
    storages = FakeStorages()
    shards = SimpleNamespace(storages=storages)
    buffer = Reading(cast("Any", shards), cast("Any", AHEAD)).new_buffer()
    assert buffer.limit == 1  # the first batch comes alone
    assert buffer.most_batches() == 3
    buffer.take(32 * MIB)
    assert buffer.limit == 4 * MIB
    storages.is_there = True
    assert buffer.limit == 64 * MIB
    storages.is_there = False  # the next block is announced
    assert buffer.limit == 4 * MIB


def test_without_a_cache_the_limit_grows_from_a_few_mebibytes():
    buffer = Reading(cast("Any", None)).new_buffer()
    assert buffer.limit == 4 * MIB
    buffer.take(16 * MIB)
    assert buffer.limit == 64 * MIB
