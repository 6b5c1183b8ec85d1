"""Streams of shards that break off, hold more than they should, or are gone."""

from collections import Counter
from itertools import chain
from json import dumps
from pathlib import Path

import pytest
from spoilt_shards import all_bad, all_rows, epoch_of, require_lockstep, rows_of

from lightning_shards.errors import DamagedShardError, ShardNotFoundError
from lightning_shards.shards.members import scan_members


@pytest.fixture
def cut_data(make_data):
    """Four shards of six samples; the third breaks in its fourth sample, and others count it."""
    data = make_data({}, counts=(6, 6, 6, 6))
    folder = Path(data.urls[0]).parent
    folder.joinpath("sizes.json").write_text(dumps({Path(url).name: 6 for url in data.urls}))
    path = Path(data.urls[2])
    offset, _, _ = scan_members(path).find(3, "png")  # behind its label
    path.write_bytes(path.read_bytes()[:offset])
    return data


LOST = [(2, 3), (2, 4), (2, 5)]


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("sampling", ["shuffled", "sequential"])
def test_what_a_cut_shard_has_lost_is_replaced_and_counted(cut_data, sampling, num_workers):
    module = cut_data.module(reader="stream", sampling=sampling, max_bad=3)
    ranks, plan = epoch_of(module, 2, num_workers)
    require_lockstep(ranks, plan)
    found = sorted(each[:3] for each in all_bad(ranks))
    # webdataset gives the half of a sample that is there, which has not all fields
    assert [each[:2] for each in found] == LOST
    assert {each[2] for each in found} <= {"DamagedShardError", "MissingFieldError"}
    good = [(shard, n) for shard in range(4) for n in range(6) if (shard, n) not in LOST]
    assert sorted(each for each, weight in all_rows(ranks) if weight) == good


@pytest.mark.parametrize("counted", [True, False])
def test_resampling_gives_up_the_rest_of_a_cut_shard(cut_data, counted):
    module = cut_data.module(
        reader="stream", sampling="resampled", dataset_size=160, max_bad=30, shuffle_buffer=0
    )
    if not counted:
        index = module._index("train")
        module._indexes["train"] = type(index)(index.urls, None)
    loader = module.loader("train")
    rows = [row for batch in loader for row in rows_of(batch)]
    assert len(rows) == 160
    seen = Counter(each for each, _ in rows)
    assert not seen.keys() & set(LOST)
    assert {shard for shard, _ in seen} == {0, 1, 2, 3}
    damaged = [each for each in loader.served.bad if each.reason == "DamagedShardError"]
    readings = seen[2, 2]
    assert readings >= 2
    assert abs(len(damaged) - readings) <= 1  # the epoch may begin or end within it
    halves = [each for each in loader.served.bad if each not in damaged]
    assert all(each.reason == "MissingFieldError" for each in halves)
    # nothing was planned of what a damaged shard should have held: nothing takes its place
    assert sum(weight == 0 for _, weight in rows) == len(halves)


@pytest.mark.parametrize("sampling", ["sequential", "resampled"])
def test_a_shard_with_more_samples_than_counted_is_always_an_error(make_data, sampling):
    data = make_data({}, counts=(4,))
    Path(data.urls[0]).with_name("sizes.json").write_text(dumps({"shard-0.tar": 3}))
    size = 6 if sampling == "resampled" else 3
    given = {"max_bad": 50, "batch_size": 3, "dataset_size": size}
    module = data.module(reader="stream", sampling=sampling, **given)
    with pytest.raises(DamagedShardError, match="gave more than 3 samples"):
        list(chain.from_iterable(iter(module.loader("train")) for _ in range(3)))


@pytest.mark.parametrize("sampling", ["sequential", "resampled"])
def test_a_shard_that_is_gone_is_always_an_error(cut_data, sampling):
    module = cut_data.module(reader="stream", sampling=sampling, max_bad=99, dataset_size=24)
    loader = module.loader("train")
    batches = iter(loader)
    for url in cut_data.urls:
        (Path(cut_data.cache).parent / "shards" / url.rpartition("/")[2]).unlink()
    with pytest.raises((ShardNotFoundError, DamagedShardError), match=r"not exist|404 Not Found"):
        list(batches)
