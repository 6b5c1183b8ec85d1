"""What a run reads of remote shards at a time, by which its cache is sized."""

import numpy as np
import pytest
from small_kept import kept_order
from small_orders import make
from small_strands import strands

from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.mixture import MixtureOrder
from lightning_shards.plan.pieces import window_of
from lightning_shards.plan.place import Place
from lightning_shards.remote.ahead import need_of_source
from lightning_shards.remote.backend import TransportSettings
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.index import ShardIndex, join_indexes

SAMPLE_BYTES = 1000
ALL = [True] * 100


def told(order, folder, sizes=(SAMPLE_BYTES,) * 3, prepared=1, **others):
    """What the cache is told of a million samples of each component, of these sizes."""
    found = [
        ShardIndex((f"https://host/{size}.tar",), np.array([10**6]), size_bytes=size * 10**6)
        for size in sizes
    ]
    index = join_indexes(found) if isinstance(order, MixtureOrder) else found[0]
    settings = TransportSettings()
    return need_of_source(index, order, CacheFolder(folder), settings, prepared=prepared, **others)


def window(order, batch_size=2, world_size=1, num_workers=1):
    place = Place(0, world_size, num_workers=num_workers)
    return window_of(order, EpochSchedule(100, batch_size, "drop"), place)


def test_the_cache_is_told_of_the_window_that_all_nodes_read_from(tmp_path):
    order = kept_order([ALL], block=40)
    here = told(order, tmp_path, prepared=16, nodes=8)
    read = window(order, batch_size=4, world_size=16, num_workers=2)
    assert here.working_set_bytes == 2 * read * SAMPLE_BYTES == 2 * 160 * SAMPLE_BYTES
    large = told(order, tmp_path, (2 << 20,), prepared=16, nodes=8)
    assert large.working_set_bytes == 3 * 16 * (2 << 20)


def test_what_workers_keep_ready_is_worked_on_too(tmp_path):
    """16 small batches in a message, or 4 MiB of them; nothing is fetched for large samples."""
    order, workers = kept_order([ALL], block=40), {"prepared": 4, "batch_size": 2, "messages": 3}
    ready = told(order, tmp_path, **workers).working_set_bytes // SAMPLE_BYTES - 2 * 40
    assert ready == 3 * 16 * 2
    few = told(order, tmp_path, (1 << 19,), **workers).working_set_bytes // (1 << 19) - 2 * 40
    assert few == 3 * 8
    large = told(order, tmp_path, (2 << 20,), **workers)
    assert large.working_set_bytes == 3 * 4 * (2 << 20)


def test_data_is_known_by_its_urls_without_what_signs_them(tmp_path):
    def data(*urls):
        counts = np.array([100] * len(urls))
        index = ShardIndex(urls, counts, size_bytes=100_000)
        order = kept_order([ALL] * len(urls))
        settings = TransportSettings()
        return need_of_source(index, order, CacheFolder(tmp_path), settings, prepared=1).data

    small, large = "s3://b/img256/0.tar", "s3://b/img512/0.tar"
    assert len({data(small), data(large), data(small, large), data(large, small)}) == 4
    signed = [f"https://{user}host/0.tar?X-Amz-Signature={user}" for user in ("", "me:secret@")]
    assert data(*signed[:1]) == data(*signed[1:]) != data(small)


@pytest.mark.parametrize(("number", "nodes", "share"), [(8, 8, 8), (8, 1, 1), (8, 6, 2), (6, 3, 3)])
def test_of_strands_a_node_reads_those_that_no_other_one_reads(tmp_path, number, nodes, share):
    """8 strands in turns fall to 6 nodes so that each reads four of them, in epoch after epoch."""
    order = strands([100], number, run=2)
    whole = told(make([100]), tmp_path).reads_bytes
    assert told(order, tmp_path, nodes=nodes).reads_bytes == whole // share
