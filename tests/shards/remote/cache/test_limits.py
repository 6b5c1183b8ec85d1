"""Which pieces stay, and how many bytes they may take."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.errors import ConfigError
from lightning_shards.shards.remote.cache.limits import (
    GIB,
    CachedPiece,
    CacheNeed,
    default_limit,
    has_room,
    kept_fraction,
    lack_beside,
    limit_for,
    limit_of_pieces,
    own_share,
    pieces_to_drop,
)

PIECES = st.lists(
    st.builds(
        CachedPiece, st.uuids().map(str), st.integers(1, 9), st.integers(0, 9), st.floats(0, 1)
    ),
    max_size=20,
)
SIZES = st.integers(0, 10**6)
NEEDS = st.lists(
    st.builds(CacheNeed, st.sampled_from("ab"), SIZES, SIZES, SIZES, SIZES), max_size=4
)


@given(NEEDS)
def test_a_fraction_is_one(needs):
    fraction, limit = kept_fraction(needs), limit_of_pieces(needs)
    assert 0 <= fraction <= 1
    reads = sum(max(n.reads_bytes for n in needs if n.data == d) for d in {n.data for n in needs})
    assert fraction == 1.0 or fraction * reads <= limit


def test_more_runs_keep_less():
    train = CacheNeed("train", 1000, reads_bytes=2000, working_set_bytes=100)
    val = CacheNeed("val", 1000, reads_bytes=500, working_set_bytes=100)
    assert kept_fraction([train, val]) < kept_fraction([train]) < 0.5


def test_two_jobs_of_one_data_set_share_what_stays():
    job = CacheNeed("train", 1000, reads_bytes=900, working_set_bytes=50)
    assert kept_fraction([job, job]) == 1.0


def test_the_largest_limit_holds_for_all_and_tables_of_the_same_data_are_shared():
    needs = [CacheNeed("a", limit, 10, 1, tables_bytes=5) for limit in (500, 300)]
    assert limit_of_pieces(needs) == 495
    assert limit_of_pieces([*needs, CacheNeed("b", 100, 10, 1, tables_bytes=7)]) == 488


def test_a_run_with_a_smaller_limit_has_a_share_of_its_own():
    large = CacheNeed("a", 500, 1000, 50, groups=("a", "both"))
    small = CacheNeed("b", 20, 1000, 5, tables_bytes=3, groups=("b", "both"))
    assert own_share([large, small], large) is None
    assert own_share([large, small], small) == (frozenset("b"), 17)
    assert own_share([small, small._replace(data="c")], small) is None


def test_of_data_with_a_small_limit_less_stays_and_of_the_others_no_less_for_it():
    large = CacheNeed("a", 512, 1024, 32, groups=("a",))
    small = CacheNeed("b", 32, 1024, 2, groups=("b",))
    pieces = [CachedPiece("a", 1, 0, 0.3, "a"), CachedPiece("b", 1, 1, 0.1, "b")]
    assert kept_fraction([large, small]) < 0.3
    assert pieces_to_drop(pieces, [large, small], 1) == pieces[1:]


def test_equal_limits_keep_the_same_fraction_of_all():
    needs = [CacheNeed(data, 600, reads, 20) for data, reads in (("a", 1000), ("b", 200))]
    assert kept_fraction(needs) == pytest.approx((600 - 40 - 600 // 16) / (1200 - 40))


def test_no_data_is_worked_on_twice_at_once():
    jobs = [CacheNeed("a", 800, 1000, working_set_bytes=600)] * 2
    other = CacheNeed("b", 1600, 1000, working_set_bytes=0)
    assert kept_fraction(jobs) == 0
    assert kept_fraction([*jobs, other]) == pytest.approx((600 - 600 // 16) / 2000)


def test_a_newcomer_has_room_beside_the_open_runs_or_is_told_why():
    train = CacheNeed("train", 4 * GIB, 9 * GIB, 3 * GIB)
    val = train._replace(data="val", working_set_bytes=GIB)
    assert not lack_beside(val, [train])
    assert not lack_beside(train, [])
    assert "work on 3 GiB and this one on 1 GiB" in lack_beside(
        val._replace(tables_bytes=1), [train]
    )
    assert not lack_beside(train._replace(limit_bytes=6 * GIB), [train])
    bench = val._replace(data="small", limit_bytes=2 * GIB)
    assert not lack_beside(bench, [train._replace(limit_bytes=500 * GIB)])


def test_of_what_is_drawn_anew_nothing_stays():
    need = CacheNeed("a", 500, 1000, 50, is_drawn=True)
    assert kept_fraction([need, need]) == 0
    assert kept_fraction([need._replace(reads_bytes=100)]) == 0
    assert 0 < kept_fraction([need, need._replace(data="b", is_drawn=False)]) < 0.25


def test_what_would_stay_for_ever_and_is_too_much_goes_before_what_is_worked_on():
    """As pieces of a version that was replaced: their group is read, and nobody reads them."""
    need = CacheNeed("a", 5000, reads_bytes=10_000, working_set_bytes=500, groups=("a",))
    dead = [CachedPiece(f"dead {n}", 1, n, 0.0, "a") for n in range(4700)]
    works = [CachedPiece(f"works {n}", 1, 5000 + n, 0.9, "a") for n in range(10)]
    assert pieces_to_drop([*works, *dead], [need], 20) == dead[:20]
    few = dead[:4500]  # of 4,408 that are expected; now those go that do not stay
    assert pieces_to_drop([*works, *few], [need], 20) == [*works, *few[:10]]


def test_pieces_that_no_run_reads_go_first_unless_they_are_young():
    need = CacheNeed("a", 500, 1000, 50, groups=("a",), begun_ns=10)
    young, stays, goes, foreign = (
        CachedPiece(name, 1, time, share, group)
        for name, time, share, group in (
            ("young", 11, 0.0, "b"),
            ("stays", 2, 0.0, "a"),
            ("goes", 5, 1.0, "a"),
            ("foreign", 9, 0.0, "b"),
        )
    )
    dropped = pieces_to_drop([young, stays, goes, foreign], [need], 4)
    assert dropped == [foreign, goes, stays, young]


@given(PIECES, SIZES, st.integers(0, 60))
def test_what_is_dropped_is_enough_and_no_more(pieces, limit, lacking):
    need = CacheNeed("a", limit, 10**6, 0)
    fraction, dropped = kept_fraction([need]), pieces_to_drop(pieces, [need], lacking)
    sizes = [piece.size for piece in dropped]
    assert sum(sizes) >= min(lacking, sum(piece.size for piece in pieces))
    assert not dropped or sum(sizes[:-1]) < lacking
    left = [piece for piece in pieces if piece not in dropped]
    keys = [(piece.share < fraction, piece.changed_ns) for piece in dropped]
    assert all(key <= (piece.share < fraction, piece.changed_ns) for piece in left for key in keys)


def test_a_fixed_half_is_hit_by_half():
    """Four epochs in random orders, room for half of 1,000 pieces beside a working set of 40."""
    generator = np.random.default_rng(0)
    shares = generator.random(1000)
    need = CacheNeed("a", 540, reads_bytes=1000, working_set_bytes=40)
    there, hits, clock = {}, [], 0
    for _ in range(4):
        hits.append(0)
        for piece in generator.permutation(1000).tolist():
            hits[-1] += piece in there
            if piece not in there:
                if len(there) == need.limit_bytes:
                    cached = [CachedPiece(str(p), 1, t, shares[p]) for p, t in there.items()]
                    for dropped in pieces_to_drop(cached, [need], 17):
                        del there[int(dropped.path)]
                clock += 1
                there[piece] = clock
    assert min(hits[1:]) >= 460  # a sixteenth of the room is not promised


@pytest.mark.parametrize("working_set", [0, 100, 500, 900, 1000])
def test_no_fraction_needs_more_than_all_of_the_data(working_set):
    need = CacheNeed("a", 0, reads_bytes=1000, working_set_bytes=working_set, tables_bytes=7)
    limits = [limit_for(fraction, need) for fraction in (0.1, 0.5, 0.9, 1.0)]
    assert limits == sorted(limits)
    assert limits[-1] == 1007


def test_the_default_leaves_room_on_the_disk():
    assert default_limit(400 * GIB, 0) == 300 * GIB
    assert default_limit(100 * GIB, 0) == 50 * GIB
    assert default_limit(49 * GIB, 0) == 0
    assert default_limit(300 * GIB, 100 * GIB) == default_limit(400 * GIB, 0)


def test_a_limit_below_the_working_set_is_refused_with_numbers():
    need = CacheNeed("a", 3 * GIB, 100 * GIB, 3 * GIB + 1, tables_bytes=GIB // 2)
    with pytest.raises(ConfigError, match=r"cache_gib=3 .* have 3 GiB, .* 0\.5 GiB; set .* 3\.51"):
        has_room(need, is_set=True)
    assert not has_room(need, is_set=False)
    assert has_room(need._replace(limit_bytes=4 * GIB), is_set=True)
