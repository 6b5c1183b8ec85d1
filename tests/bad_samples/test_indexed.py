"""The indexed reader replaces bad samples by good ones, the same under any workers and ranks."""

import re
from pathlib import Path

import pytest
import torch
from spoilt_shards import (
    IDS,
    NUM_SAMPLES,
    REMAINDERS,
    SAMPLINGS,
    as_bytes,
    counted,
    epoch_of,
    flip_byte,
    made_by_workers,
    require_lockstep,
    rows_of,
    write_shards,
)

from lightning_shards.errors import (
    DamagedShardError,
    IndexMismatchError,
    MissingFieldError,
    SampleError,
    ShardNotFoundError,
    TransformError,
)
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.place import Place


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_next_good_sample_of_the_order_stands_for_a_bad_one(
    indexed_data, sampling, remainder, world_size
):
    module = indexed_data.module(
        sampling=sampling, remainder=remainder, reader="indexed", max_bad=40, batch_size=4
    )
    ranks, plan = epoch_of(module, world_size)
    require_lockstep(ranks, plan)
    order = module.loader("train").source.order
    for rank, made in enumerate(ranks):
        for step, each in enumerate(made):
            start, stop = plan.rank_span(step, rank)
            positions = [tuple(i) for i in order.at(0, start, stop + NUM_SAMPLES).tolist()]
            expected, bad = [], []
            for number, position in enumerate(range(start, stop)):
                is_repeat = position >= NUM_SAMPLES and sampling != "resampled"
                is_repeat = is_repeat or number >= stop - start - plan.num_repeats(step, rank)
                good = next(i for i in positions[number:] if i not in indexed_data.bad_ids)
                is_good = good == positions[number] and positions[number] is good
                expected.append((good, float(is_good and not is_repeat)))
                if positions[number] in indexed_data.bad_ids and not is_repeat:
                    bad.append((*positions[number], indexed_data.bad_ids[positions[number]]))
            assert rows_of(each.batch) == expected
            assert each.batch["__weight__"].dtype == torch.float32
            assert [each[:3] for each in each.bad] == bad


def test_a_large_budget_asks_the_order_for_no_more_than_it_takes(indexed_data, monkeypatch):
    """As many as may be bad would be millions of ids for each bad sample of a large data set."""
    asked, real = list[int](), SampleOrder.following

    def following(self, epoch, position, number):
        asked.append(number)
        return real(self, epoch, position, number)

    monkeypatch.setattr(SampleOrder, "following", following)
    data = indexed_data.module(reader="indexed", sampling="sequential", max_bad=10**6)
    list(data.loader("train"))
    assert 0 < max(asked) < NUM_SAMPLES / 2


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_substitute_is_whole_and_drawn_for_its_own_position(indexed_data, clean_data, sampling):
    """Key, id, label and pixels are of one sample; its noise is that of the position."""
    settings = {"sampling": sampling, "reader": "indexed", "max_bad": 40}
    found = made_by_workers(indexed_data.module(**settings), Place(), 1, 15)
    wanted = made_by_workers(clean_data.module(**settings), Place(), 1, 15)
    num_substitutes = 0
    for mine, other in zip(found, wanted, strict=True):
        for row, weight in enumerate(mine.batch["__weight__"].tolist()):
            number = IDS.index(tuple(mine.batch["__id__"][row].tolist()))
            num_substitutes += not weight
            assert mine.batch["__key__"][row] == f"{number:04d}"
            assert mine.batch["label"][row] == number
            planned = other.batch["label"][row]
            noise = mine.batch["image"][row] - number
            assert torch.allclose(noise, other.batch["image"][row] - planned)
    assert num_substitutes >= 3


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_batches_are_equal_byte_for_byte_under_any_number_of_workers(
    indexed_data, sampling, remainder
):
    module = indexed_data.module(
        sampling=sampling, remainder=remainder, reader="indexed", max_bad=40
    )
    place, num_batches = Place(1, 3), 13  # over the ends of epochs
    first = made_by_workers(module, place, 1, num_batches)
    for num_workers in (2, 3):
        other = made_by_workers(module, place, num_workers, num_batches)
        for mine, theirs in zip(first, other, strict=True):
            assert as_bytes(mine.batch) == as_bytes(theirs.batch)
            assert counted(mine.bad) == counted(theirs.bad)
            assert mine.digest == theirs.digest
    assert any(made.bad for made in first)


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("image", SampleError, "this is no image of a known format"),
        ("field", MissingFieldError, "no member for field 'label'"),
        (
            "transform",
            TransformError,
            r"sample '0001' of .*shard-0\.tar: RuntimeError: cannot bear 1",
        ),
        ("crc32", DamagedShardError, r"'0001\.cls', sample 1\) is damaged: its crc32"),
    ],
)
def test_each_kind_is_named_as_an_error_and_counted_as_a_loss(make_data, kind, error, message):
    data = make_data({1: kind}, counts=(3,))
    if kind == "crc32":
        flip_byte(data.urls[0], data.cache, 1)
    plain = data.module(sampling="sequential", batch_size=3, on_bad_sample="raise", max_bad=0)
    with pytest.raises(error, match=message) as caught:
        list(plain.loader("train"))
    assert type(caught.value) is error
    loader = data.module(sampling="sequential", batch_size=3).loader("train")
    (batch,) = loader
    assert rows_of(batch) == [((0, 0), 1.0), ((0, 2), 0.0), ((0, 2), 1.0)]
    ((shard, sample, reason, told),) = loader.served.bad
    assert (shard, sample, reason) == (0, 1, error.__name__)
    assert told[:60] == str(caught.value)[:60]
    assert re.search(message, told)


def test_when_nothing_good_follows_the_bad_sample_is_the_error(make_data):
    data = make_data(dict.fromkeys(range(1, 6), "image"), counts=(8,))
    loader = data.module(sampling="sequential", max_bad=4).loader("train")
    with pytest.raises(SampleError, match=r"5 bad samples on this rank"):
        list(loader)
    loader = data.module(sampling="sequential", max_bad=3).loader("train")
    with pytest.raises(SampleError, match=r"'0001' of .* this is no image") as caught:
        list(loader)
    assert caught.value.__notes__ == ["of 4 other samples that follow in the order none is good"]


def test_a_shard_that_changed_or_is_gone_is_no_bad_sample(make_data):
    data = make_data({}, counts=(2, 4))
    module = data.module(sampling="sequential", max_bad=100)
    loader = module.loader("train")
    Path(data.urls[1]).rename(data.urls[1] + ".away")
    with pytest.raises(ShardNotFoundError, match=r"shard-1\.tar does not exist"):
        list(loader)
    write_shards(Path(data.urls[0]).parent / "other", {}, counts=(5,))
    Path(data.urls[0]).with_name("other").joinpath("shard-0.tar").rename(data.urls[1])
    with pytest.raises(IndexMismatchError, match="it holds 5 samples, 4 by the index"):
        list(loader)
