"""Chains of fits that change the batch size and the number of ranks train each sample once.

Sample number i of an epoch is its position i: so what an epoch was trained on, over all fits of a
chain, must be 0, 1, 2, ... in this order, as far as the plans go.
"""

import random

import pytest
from chains import Segment, Variant, fit_here, run_chain
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


def draw_chain(draws: random.Random, worlds: tuple[int, ...]) -> list[Segment]:
    """Two to four segments, each stopped at some call of some hook but the last."""
    segments: list[Segment] = []
    for number in range(draws.choice((2, 3, 3, 4)), 0, -1):
        world_size = draws.choice(worlds)
        batch_size = draws.choice([size for size in BATCH_SIZES if size * world_size <= 13])
        hook = draws.choice(Snapshots.HOOKS)
        calls = {"on_train_start": 1}.get(hook, 12 if hook in OFTEN else 3)
        stop = (hook, draws.randrange(calls)) if number > 1 else None
        segments.append(Segment(batch_size, world_size, stop, raises=draws.random() < 0.5))
    return segments


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_chain_of_batch_sizes_trains_each_sample_once(variant, tmp_path):
    draws = random.Random(variant.name)
    chains = [draw_chain(draws, worlds=(1,)) for _ in range(3)]
    resumes = [
        run_chain(fit_here, tmp_path / str(number), variant, chain)
        for number, chain in enumerate(chains)
    ]
    assert sum(resumes) >= 3  # where a stop does not come there is none


def test_a_window_that_the_batch_size_cut_is_not_rounded_down_into_what_was_trained(tmp_path):
    """12 samples are trained, then 4 of 8 batches of 3 are done: windows end at batches 3 and 6."""
    chain = [
        Segment(4, stop=("on_train_batch_end", 2)),
        Segment(3, stop=("on_train_batch_end", 0)),
        Segment(3),
    ]
    variant = Variant("accumulate 3", {"accumulate_grad_batches": 3})
    assert run_chain(fit_here, tmp_path, variant, chain) == 2


def test_an_epoch_whose_limit_is_in_larger_batches_is_over(tmp_path):
    """8 of 12 samples are trained; half of 2 batches of 13 is one, which counts as done."""
    chain = [Segment(4, stop=("on_train_batch_end", 1)), Segment(13)]
    variant = Variant("limit_train_batches .5", {"limit_train_batches": 0.5})
    assert run_chain(fit_here, tmp_path, variant, chain) == 1


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_any_chain_of_batch_sizes_trains_each_sample_once(variant, seed, tmp_path):
    draws = random.Random(f"{variant.name} {seed}")
    for number in range(20):
        chain = draw_chain(draws, worlds=(1,))
        run_chain(fit_here, tmp_path / str(number), variant, chain)


@pytest.mark.slow
@pytest.mark.ddp
def test_chains_of_worlds_train_each_sample_once(ranks, tmp_path):
    """2 ranks, killed within an epoch, 1 rank, killed before its validation, 4 ranks; and back."""
    chains = [
        [
            Segment(2, 2, ("on_train_batch_end", 3)),
            Segment(3, 1, ("on_validation_start", 0)),
            Segment(1, 4),
        ],
        [
            Segment(1, 4, ("on_train_batch_end", 5)),
            Segment(2, 2, ("on_train_epoch_end", 0)),
            Segment(5, 1),
        ],
    ]
    for number, chain in enumerate(chains):
        assert run_chain(ranks.fit, tmp_path / str(number), VARIANTS[0], chain) == 2


@pytest.mark.slow
@pytest.mark.ddp
@pytest.mark.matrix
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_any_chain_of_worlds_trains_each_sample_once(variant, ranks, tmp_path):
    draws = random.Random(variant.name)
    for number in range(25):
        chain = draw_chain(draws, worlds=(1, 2, 4))
        run_chain(ranks.fit, tmp_path / str(number), variant, chain)
