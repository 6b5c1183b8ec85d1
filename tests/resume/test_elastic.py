"""Chains of fits that change the batch size train each sample once; ddp_kill has those of ranks.

Sample number i of an epoch is its position i: so what an epoch was trained on, over all fits of a
chain, must be 0, 1, 2, ... in this order, as far as the plans go.
"""

import random

import pytest
from chains import Segment, Variant, run_chain
from toy import Snapshots

VARIANTS = [
    Variant("max_epochs"),
    Variant("max_steps", {"max_steps": 1_000, "max_epochs": 3}),
    Variant("no validation", data={"val_samples": 0}, validations=()),
    Variant("accumulate 2", {"accumulate_grad_batches": 2}),
    Variant("accumulate 3", {"accumulate_grad_batches": 3}),
    Variant("limit_train_batches 4", {"limit_train_batches": 4}),
    Variant("limit_train_batches .5", {"limit_train_batches": 0.5}),
    Variant("val_check_interval .5", {"val_check_interval": 0.5}, validations=None),
    Variant("estimated steps", model={"estimates": True}),
    Variant("reload every epoch", {"reload_dataloaders_every_n_epochs": 1}),
    Variant("pad", data={"remainder": "pad"}),
    Variant("balanced", data={"remainder": "balanced"}),
]
BATCH_SIZES = (1, 2, 3, 4, 5, 6, 8, 13)
OFTEN = ("on_train_batch_start", "on_before_zero_grad", "on_train_batch_end")


def draw_chain(draws: random.Random) -> list[Segment]:
    """Two to four segments, each stopped at some call of some hook but the last."""
    segments: list[Segment] = []
    for number in range(draws.choice((2, 3, 3, 4)), 0, -1):
        batch_size = draws.choice(BATCH_SIZES)
        hook = draws.choice(Snapshots.HOOKS)
        calls = {"on_train_start": 1}.get(hook, 12 if hook in OFTEN else 3)
        stop = (hook, draws.randrange(calls)) if number > 1 else None
        segments.append(Segment(batch_size, stop, raises=draws.random() < 0.5))
    return segments


MANY = pytest.param(200, marks=[pytest.mark.slow, pytest.mark.matrix])


@pytest.mark.parametrize("least", [3, MANY])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_chain_of_batch_sizes_trains_each_sample_once(variant, least, tmp_path):
    draws = random.Random(variant.name)
    resumes = number = 0
    while resumes < least:  # where a stop does not come there is none
        resumes += run_chain(tmp_path / str(number), variant, draw_chain(draws))
        number += 1


def test_a_window_that_the_batch_size_cut_is_not_rounded_down_into_what_was_trained(tmp_path):
    """12 samples are trained, then 4 of 8 batches of 3 are done: windows end at batches 3 and 6."""
    chain = [
        Segment(4, stop=("on_train_batch_end", 2)),
        Segment(3, stop=("on_train_batch_end", 0)),
        Segment(3),
    ]
    variant = Variant("accumulate 3", {"accumulate_grad_batches": 3})
    assert run_chain(tmp_path, variant, chain) == 2


def test_an_epoch_whose_limit_is_in_larger_batches_is_over(tmp_path):
    """8 of 12 samples are trained; half of 2 batches of 13 is one, which counts as done."""
    chain = [Segment(4, stop=("on_train_batch_end", 1)), Segment(13)]
    variant = Variant("limit_train_batches .5", {"limit_train_batches": 0.5})
    assert run_chain(tmp_path, variant, chain) == 1
