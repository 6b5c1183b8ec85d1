"""Small orders of strands, and a strategy that draws them."""

from hypothesis import strategies as st
from small_orders import make

from lightning_shards.plan.strands import StrandOrder


def strands(counts, strands, width=4, seed=0, run=2, block=16):
    return StrandOrder(make(counts, seed, "shuffled", run, block), strands, width)


@st.composite
def strand_orders(draw):
    """From one strand to one for each run, blocks of one run of each to many of them."""
    counts = draw(st.lists(st.integers(0, 12), min_size=1, max_size=7).filter(any))
    run = draw(st.integers(1, min(5, sum(counts))))
    number = draw(st.integers(1, sum(counts) // run))
    block = draw(st.integers(number * run, number * run + 40))
    return strands(counts, number, draw(st.integers(1, 9)), draw(st.integers(0, 99)), run, block)


STRANDS = strand_orders()
