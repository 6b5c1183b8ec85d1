"""The digest of a set of ids is that of its parts added, and of no other set."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.plan import digest as digest_module
from lightning_shards.plan.digest import add_digests, digest_ids, digest_share
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.place import Place

ids = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=20)


def digest(pairs):
    return digest_ids(np.array(pairs, dtype=np.int64).reshape(-1, 2))


def test_the_digest_of_known_ids_stays_what_it_was():
    assert digest([(0, 0)]) == 8841707400507832957
    assert digest([(0, 1), (3, 2)]) == 18244534077519378622
    assert digest([]) == 0


@given(ids, st.randoms(use_true_random=False))
def test_neither_the_order_nor_the_parts_change_it(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    cut = random.randint(0, len(pairs))
    assert digest(pairs) == add_digests(digest(shuffled[:cut]), digest(shuffled[cut:]))


@given(ids, st.data())
def test_a_lost_a_repeated_and_a_foreign_id_change_it(pairs, data):
    changed = data.draw(st.integers(0, 2**40)), data.draw(st.integers(0, 2**40))
    assert digest([*pairs, changed]) != digest(pairs)
    if pairs and changed != pairs[0]:
        assert digest([changed, *pairs[1:]]) != digest(pairs)


def test_all_small_ids_have_digests_of_their_own():
    """Also those whose numbers are exchanged, or have the same sum."""
    pairs = list(itertools.product(range(300), repeat=2))
    assert len({digest([pair]) for pair in pairs}) == len(pairs)
    digests = [digest([pair]) for pair in pairs[:200]]
    sums = {add_digests(*two) for two in itertools.combinations(digests, 2)}
    assert len(sums) == 200 * 199 // 2


@pytest.mark.parametrize("sampling", ["sequential", "shuffled", "resampled"])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_the_digest_of_an_order_is_that_of_its_ids(sampling, at_once, monkeypatch):
    monkeypatch.setattr(digest_module, "_AT_ONCE", at_once)
    order = SampleOrder(np.array([4, 0, 7]), 3, sampling, run=2, block=4)
    expected = digest_ids(order.at(5, 2, 9))
    for world_size in (1, 2, 3, 9):
        places = [Place(rank, world_size) for rank in range(world_size)]
        assert add_digests(*(digest_share(order, 5, 2, 9, each) for each in places)) == expected
    assert digest_share(order, 5, 4, 4, Place()) == 0
