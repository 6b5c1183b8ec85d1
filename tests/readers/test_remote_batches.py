"""How much batches read at once beside what is fetched ahead."""

from types import SimpleNamespace
from typing import Any, cast

from lightning_shards.readers.reading import Reading

MIB = 2**20


def test_as_much_is_read_at_once_as_of_local_files_when_all_is_there():
    ahead = SimpleNamespace(most_batches=lambda: 3, are_there=False)
    buffer = Reading(cast("Any", None), cast("Any", ahead)).new_buffer()
    assert buffer.limit == 1  # the first batch comes alone
    assert buffer.most_batches() == 3
    buffer.take(32 * MIB)
    assert buffer.limit == 4 * MIB
    ahead.are_there = True
    assert buffer.limit == 64 * MIB
    ahead.are_there = False  # the next block is announced
    assert buffer.limit == 4 * MIB


def test_without_a_cache_the_limit_grows_from_a_few_mebibytes():
    buffer = Reading(cast("Any", None)).new_buffer()
    assert buffer.limit == 4 * MIB
    buffer.take(16 * MIB)
    assert buffer.limit == 64 * MIB
