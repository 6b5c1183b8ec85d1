"""The arithmetic of ranges of bytes, against the same done member by member."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_shards.remote.byte_ranges import (
    LARGE_SAMPLE,
    bytes_of_samples,
    is_sample_the_unit,
    joined,
    parts_of,
)

SIZES = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=12)
GAPS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=15)


def ints(values):
    return np.array(list(values), np.int64)


def table(sizes):
    """The starts of samples, and offsets and sizes of members, as in a tar with headers of 512."""
    flat = ints(size for sample in sizes for size in sample)
    offsets = np.cumsum(flat + 512) - flat
    starts = np.cumsum([0, *map(len, sizes)])
    return ints(starts), offsets, flat


@settings(max_examples=40)
@given(SIZES, st.data())
def test_a_piece_has_all_members_of_its_samples(sizes, data):
    starts, offsets, flat = table(sizes)
    spans = data.draw(st.lists(st.tuples(*[st.integers(0, len(sizes))] * 2), max_size=4))
    spans = [tuple(sorted(span)) for span in spans]
    samples = ints(first for first, _ in spans), ints(stop for _, stop in spans)
    begins, ends = bytes_of_samples(starts, offsets, flat, samples)
    for (first, stop), begin, end in zip(spans, begins, ends, strict=True):
        members = range(starts[first], starts[stop])
        assert begin == min((offsets[member] for member in members), default=0)
        assert end == max((offsets[member] + flat[member] for member in members), default=0)


@settings(max_examples=40)
@given(st.integers(0, 50), st.integers(0, 200), st.integers(1, 40))
def test_parts_are_the_whole_and_no_more_than_needed(begin, size, most):
    parts = parts_of(begin, begin + size, most)
    assert [number for part in parts for number in range(*part)] == [*range(begin, begin + size)]
    assert all(0 < stop - start <= most for start, stop in parts)
    assert len(parts) == -(-size // most)


@settings(max_examples=40)
@given(GAPS, st.integers(0, 12), st.integers(1, 60))
def test_joined_ranges_have_each_member_and_no_wide_gap(members, gap, most):
    begins = ints(np.cumsum([step for step, _ in members]))
    ends = begins + ints(size for _, size in members)
    ranges = joined(begins, ends, gap, most)
    groups = np.split(np.arange(len(begins)), ranges.firsts[1:])
    for begin, end, group in zip(ranges.begins, ranges.ends, groups, strict=False):
        assert (begins[group].min(), ends[group].max()) == (begin, end)
        assert begins[group[-1]] < begin + most or len(group) == 1
        reached = np.maximum.accumulate(ends[group])
        assert (begins[group][1:] <= reached[:-1] + gap).all()


@settings(max_examples=40)
@given(GAPS, st.integers(0, 12))
def test_members_with_small_gaps_are_one_range(members, gap):
    begins = ints(np.cumsum([min(step, gap) for step, _ in members]))
    ends = begins + ints(size for _, size in members)
    assert len(joined(begins, ends, gap, 10**6).begins) == (len(members) > 0)


def test_large_samples_are_units():
    assert is_sample_the_unit(10 * LARGE_SAMPLE, 10)
    assert not is_sample_the_unit(10 * LARGE_SAMPLE - 1, 10)
    assert not is_sample_the_unit(0, 0)
