"""The stream reader replaces bad samples by those beside them."""

from collections import Counter

import pytest
from spoilt_shards import (
    IDS,
    REMAINDERS,
    all_bad,
    all_rows,
    epoch_of,
    require_lockstep,
    rows_of,
)

from lightning_shards.errors import SampleError


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 1), (1, 3), (2, 2), (3, 1)])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("sampling", ["shuffled", "sequential"])
def test_a_stream_serves_each_good_sample_once_and_counts_each_bad_one(
    stream_data, sampling, remainder, world_size, num_workers
):
    """Workers have few samples each: for some of them all are bad."""
    module = stream_data.module(reader="stream", sampling=sampling, remainder=remainder)
    ranks, plan = epoch_of(module, world_size, num_workers)
    require_lockstep(ranks, plan)
    served = Counter(each for each, weight in all_rows(ranks) if weight)
    bad = Counter({each[:2]: 0 for each in all_bad(ranks)})
    bad.update(each[:2] for each in all_bad(ranks))
    assert set(served.values()) <= {1}
    assert set(bad.values()) <= {1}
    assert served.keys() | bad.keys() <= set(IDS)
    assert not served.keys() & stream_data.bad_ids.keys()
    assert len(served) + len(bad) == plan.served
    assert all(stream_data.bad_ids[each[:2]] == each.reason for each in all_bad(ranks))
    assert not {each for each, _ in all_rows(ranks)} & stream_data.bad_ids.keys()


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("buffer", [0, 10])
def test_a_resampled_stream_goes_on_over_bad_samples(stream_data, counted, buffer):
    module = stream_data.module(
        reader="stream", sampling="resampled", shuffle_buffer=buffer, max_bad=60, dataset_size=120
    )
    if not counted:
        index = module._index("train")
        module._indexes["train"] = type(index)(index.urls, None)
    loader = module.loader("train")
    rows = [row for batch in loader for row in rows_of(batch)]
    assert len(rows) == 120
    assert not {each for each, _ in rows} & stream_data.bad_ids.keys()
    found = loader.served.bad
    assert {each[:2] for each in found} <= stream_data.bad_ids.keys()
    assert len([row for row in rows if not row[1]]) == len(found) > 5


@pytest.mark.parametrize("remainder", ["pad", "balanced"])
def test_a_worker_without_any_good_sample_borrows_one(make_data, remainder):
    data = make_data({0: "image", 1: "field"}, counts=(2, 1))
    module = data.module(reader="stream", sampling="sequential", remainder=remainder, batch_size=1)
    ranks, plan = epoch_of(module, 4)  # rank 3 repeats sample 0, which is bad
    require_lockstep(ranks, plan)
    assert all_rows(ranks) == [((1, 0), 0.0), ((1, 0), 0.0), ((1, 0), 1.0), ((1, 0), 0.0)]
    assert sorted(each[:3] for each in all_bad(ranks)) == [
        (0, 0, "SampleError"),
        (0, 1, "MissingFieldError"),
    ]


def test_a_stream_without_any_good_sample_says_so(make_data):
    data = make_data(dict.fromkeys(range(4), "image"), counts=(4,))
    module = data.module(reader="stream", sampling="sequential", max_bad=9)
    with pytest.raises(SampleError, match=r"not one sample .*on_bad_sample='raise'"):
        list(module.loader("train"))
    module = data.module(reader="stream", sampling="resampled", max_bad=2)
    with pytest.raises(SampleError, match="3 bad samples on this rank"):
        list(module.loader("train"))
