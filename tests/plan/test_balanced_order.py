"""Classes are drawn by their weights, and the samples of a class uniformly."""

from collections import Counter

import pytest
from small_balanced import balanced_order
from small_orders import philox

from lightning_shards.plan.draws import Purpose

LABELS = ["rare"] + ["some"] * 9 + ["most"] * 490
DRAWS = 30_000


def drawn(order, epoch=0, start=0, stop=DRAWS):
    """Number in file order of each draw."""
    ids = order.at(epoch, start, stop)
    return order.file_order.begins[ids[:, 0]] + ids[:, 1]


@pytest.mark.parametrize(
    ("weights", "shares"),
    [({}, [1, 1, 1]), ({"rare": 2, "most": 0.5}, [2, 1, 0.5]), ({"some": 0}, [1, 0, 1])],
)
def test_classes_come_by_their_weights_and_their_samples_alike(weights, shares):
    numbers = drawn(balanced_order([200, 0, 300], LABELS, weights))
    came = Counter(LABELS[number] for number in numbers)
    for name, share in zip(("rare", "some", "most"), shares, strict=True):
        expected = share / sum(shares)
        assert abs(came[name] / DRAWS - expected) < 0.015  # 5 standard deviations
        of_class = [number for number in numbers if LABELS[number] == name]
        times = Counter(of_class)
        size = LABELS.count(name)
        assert len(times) == (size if share else 0)
        assert all(times[number] < 2.2 * len(of_class) / size for number in times)


def test_a_draw_is_a_function_of_seed_epoch_and_its_number():
    """By hand: two words of one Philox stream for each draw."""
    order = balanced_order([200, 0, 300], LABELS, {"some": 0.25}, seed=7)
    words, expected = philox(7, 3, Purpose.BALANCED_DRAWS, 20), []
    for first, second in zip(words[::2], words[1::2], strict=True):
        point = (first >> 11) / 2**53 * 2.25
        begin, size = (0, 1) if point < 1 else (1, 9) if point < 1.25 else (10, 490)
        expected.append(begin + (second * size >> 64))
    assert drawn(order, 3, 0, 10).tolist() == expected
    assert drawn(order, 3, 4, 10).tolist() == expected[4:]
