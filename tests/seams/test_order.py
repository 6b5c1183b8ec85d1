"""What the seams guarantee, in the names of its tests: here what every order owes to a reader."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_alike import ALIKE
from small_balanced import balanced_order
from small_kept import KEPT
from small_mixtures import NAMES, component, mixture
from small_orders import EITHER
from small_strands import STRANDS

from lightning_shards.plan.mixture_schedule import WeightChange
from lightning_shards.plan.order import Order

FEW = settings(max_examples=settings.default.max_examples // 5)
COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)
EPOCHS = st.integers(0, 5)
POSITIONS = st.tuples(st.integers(0, 150), st.integers(0, 60)).map(lambda two: (two[0], sum(two)))


@dataclass(frozen=True)
class ListOrder(Order):
    """Ids in a list, turned by one position from epoch to epoch."""

    ids: list[tuple[int, int]]

    @property
    def samples(self):
        return len(self.ids)

    def at(self, epoch, start, stop):
        positions = range(start + epoch, stop + epoch)
        ids = [self.ids[each % len(self.ids)] for each in positions]
        return np.array(ids, dtype=np.int64).reshape(-1, 2)

    def identity(self):
        return {"sampling": "list", "ids": str(self.ids)}


def list_order(counts):
    return ListOrder([(shard, each) for shard, count in enumerate(counts) for each in range(count)])


def mixed(counts):
    samplings = ("shuffled", "resampled", "sequential")
    parts = [
        component(name, counts[number % 2 :] or [3], sampling=sampling)
        for number, (name, sampling) in enumerate(zip(NAMES, samplings, strict=False))
        if any(counts[number % 2 :] or [3])
    ]
    weights = {part.name: 1 + number for number, part in enumerate(parts)}
    change = WeightChange({parts[0].name: 1}, epoch=3)
    return mixture(parts, weights, [change], rounds=len(counts), unit=1 + counts[0] % 2)


BALANCED = COUNTS.map(lambda counts: balanced_order(counts, ("abaacb" * 9)[: sum(counts)]))

ORDERS = pytest.mark.parametrize(
    "orders",
    [EITHER, COUNTS.map(list_order), ALIKE, COUNTS.map(mixed), KEPT, BALANCED, STRANDS],
    ids=["SampleOrder", "fake", "Alike", "Mixture", "Kept", "Balanced", "Strands"],
)


def on_every_order(*strategies):
    """Lets a test draw an order of each kind, an epoch, and what is given."""
    return lambda test: ORDERS(FEW(given(st.data(), EPOCHS, *strategies)(test)))


def ids(array):
    assert (array.dtype, array.ndim, array.shape[1]) == (np.int64, 2, 2)
    return list(map(tuple, array.tolist()))


@on_every_order(POSITIONS)
def test_any_cut_gives_what_the_whole_gives(orders, data, epoch, span):
    order, cut = data.draw(orders), data.draw(st.integers(*span))
    whole = ids(order.at(epoch, *span))
    assert len(whole) == span[1] - span[0]
    assert whole == ids(order.at(epoch, span[0], cut)) + ids(order.at(epoch, cut, span[1]))
    assert pickle.loads(pickle.dumps(order)).at(epoch, *span).tolist() == list(map(list, whole))


@on_every_order(st.lists(st.integers(0, 40), min_size=2, max_size=9))
def test_spans_are_given_one_after_the_other(orders, data, epoch, bounds):
    order, bounds = data.draw(orders), sorted(bounds)
    spans = list(zip(bounds[::2], bounds[1::2], strict=False))
    expected = [each for span in spans for each in ids(order.at(epoch, *span))]
    assert ids(order.at_spans(epoch, spans)) == expected


@on_every_order()
def test_an_epoch_holds_samples_that_it_repeats(orders, data, epoch):
    order = data.draw(orders)
    served = ids(order.at(epoch, 0, order.samples))
    identity = order.identity()
    if identity["sampling"] != "resampled":
        assert ids(order.at(epoch, order.samples, 2 * order.samples)) == served
    if identity["sampling"] not in {"resampled", "mixture"}:  # which may repeat a small component
        assert len(set(served)) == order.samples


@on_every_order(st.integers(0, 60), st.integers(1, 40))
def test_more_candidates_begin_with_the_same_ones(orders, data, epoch, position, count):
    order = data.draw(orders)
    candidates = ids(order.following(epoch, position, count))
    assert len(candidates) == count
    assert ids(order.following(epoch, position, count - 1)) == candidates[:-1]


@on_every_order()
def test_any_sample_of_the_data_set_may_stand_for_a_bad_one(orders, data, epoch):
    """So that a search ends, if it reaches far enough, at the only good one."""
    order = data.draw(orders)
    if order.identity()["sampling"] not in {"resampled", "mixture"}:  # any of its component
        position = data.draw(st.integers(0, 2 * order.samples))
        candidates = order.following(epoch, position, order.samples)
        assert sorted(ids(candidates)) == sorted(ids(order.at(epoch, 0, order.samples)))


@on_every_order(POSITIONS)
def test_the_footing_holds_all_that_is_drawn(orders, data, epoch, span):
    order = data.draw(orders)
    assert set(ids(order.footing(epoch, *span))) >= set(ids(order.at(epoch, *span)))


@on_every_order(POSITIONS)
def test_the_arrays_belong_to_who_asked(orders, data, epoch, span):
    order = data.draw(orders)
    before = ids(order.at(epoch, *span))
    for array in (
        order.at(epoch, *span),
        order.at_spans(epoch, [span]),
        order.following(epoch, *span),
        order.footing(epoch, *span),
    ):
        array[:] = -1
    assert ids(order.at(epoch, *span)) == before


@on_every_order()
def test_the_identity_is_plain_and_names_the_sampling(orders, data, epoch):
    order = data.draw(orders)
    identity = order.identity()
    assert isinstance(identity["sampling"], str)
    assert {type(value) for value in identity.values()} <= {int, str}
    assert pickle.loads(pickle.dumps(order)).identity() == identity
