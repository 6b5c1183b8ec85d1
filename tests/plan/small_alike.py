"""Small orders in which samples of like size are together, and strategies that draw them."""

from hypothesis import strategies as st
from small_kept import KEPT
from small_orders import EITHER

from lightning_shards.plan.alike import AlikeOrder


def sizes(ids):
    """As uneven as those of texts, with equal ones among them."""
    return (ids[:, 0] * 37 + ids[:, 1] * 11) % 23


def alike(inner, group=4, seed=5, sizes=sizes):
    return AlikeOrder(inner, seed, group, "txt", sizes)


ALIKE = st.builds(alike, EITHER | KEPT, st.integers(2, 9), st.integers(0, 2**64 - 1))
