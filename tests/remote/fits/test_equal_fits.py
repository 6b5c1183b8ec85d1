"""Ranks that train from remote shards get what ranks get that train from local ones, every byte."""

import pytest
from batch_rows import rows_of
from fault_server import Fault

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from tests.remote.conftest import SIGNED, options_of
from tests.remote.fits.conftest import COUNTS, rows_of_ranks
from tests.remote.published import publish, server_put

pytestmark = [pytest.mark.network, pytest.mark.ddp]

NAMES = "shard-{000000..000002}.tar"
EPOCHS, GLOBAL_BATCH = 2, 4
STEPS = sum(COUNTS) // GLOBAL_BATCH
A_FIFTH = [None, None, Fault("status", 503), None, None, None, None, Fault("cut", 9), None, None]


def module(urls, tmp_path, ranks=1, num_workers=0, **loader):
    return ShardDataModule(
        SplitConfig(urls, sampling="shuffled", shuffle_run=2, shuffle_block=12),
        fields={"image": "png", "label": "cls"},
        batch_size=GLOBAL_BATCH // ranks,
        num_workers=num_workers,
        loader=LoaderConfig(**{"cache_dir": str(tmp_path / "own"), **loader}),
    )


def local_rows(paths, tmp_path, ranks):
    """By epoch and step, what each rank gets of the files on this machine."""
    data, found = module(paths, tmp_path, ranks), {}
    for rank in range(ranks):
        loader = data.loader("train", rank=rank, world_size=ranks)
        for epoch in range(EPOCHS):
            for step, batch in enumerate(loader):
                found.setdefault((epoch, step), []).append(rows_of(batch))
    return found


def of_all_ranks(rows):
    return {key: [row for rank in of_ranks for row in rank] for key, of_ranks in rows.items()}


def two_blocks(urls, tmp_path, **settings):
    """The limit of a cache that holds the block that is read and the next, in GiB."""
    data = module(urls, tmp_path, cache_gib=1, **settings)
    (cache,) = {
        id(made.cache): made.cache for made in data.source("train").storages.values()
    }.values()
    return (cache.need.working_set_bytes + 1) / 2**30


def check(fits, urls, paths, server, loader, resumed_on):
    """A fit whose ranks are killed among failing requests, and is resumed on other ranks."""
    loader["cache_gib"] = two_blocks(urls, fits.folder, **loader)
    server.faults = A_FIFTH * 200
    given = {"loader": loader, "is_quick": True, "saves": True}
    killed, _, statuses = fits.run(urls, ranks=2, killed_at=STEPS + 7, **given)
    assert statuses == [-9, -9]
    expected = local_rows(paths, fits.folder, 2)
    assert rows_of_ranks(killed) == dict(list(expected.items())[: STEPS + 8])
    checkpoint = max((killed / "saved").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for ranks in resumed_on:
        server.faults = A_FIFTH * 200
        resumed, said, statuses = fits.run(urls, ranks=ranks, checkpoint=str(checkpoint), **given)
        assert not any(statuses), said[-4000:]
        own = local_rows(paths, fits.folder, ranks)
        assert rows_of_ranks(resumed) == dict(list(own.items())[STEPS + 7 :])
        assert of_all_ranks(own) == of_all_ranks(expected)
        assert said.count("as the order says (digest") == 1
    assert any("503" in str(fault) for fault in A_FIFTH)
    assert len(server.asked) > STEPS


@pytest.mark.slow
def test_two_killed_ranks_go_on_with_the_same_rows(fits, local_paths, server, tmp_path):
    publish(local_paths, server_put(server), tmp_path, counts=COUNTS)
    check(fits, f"{server.url}/data/{NAMES}{SIGNED}", local_paths, server, {}, [2])


@pytest.mark.matrix
@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_killed_ranks_go_on_with_the_same_rows_on_other_numbers_of_ranks(
    scheme, fits, local_paths, server, tmp_path
):
    publish(local_paths, server_put(server), tmp_path, counts=COUNTS)
    url = f"{server.url}/data/{NAMES}{SIGNED}" if scheme == "http" else f"s3://data/{NAMES}"
    loader = {} if scheme == "http" else {"storage_options": {"s3": options_of(server)["s3"]}}
    check(fits, url, local_paths, server, loader, [1, 2, 4])
