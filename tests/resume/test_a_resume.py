"""What resume guarantees, in the names of its tests.

Stopped at any hook and resumed as it was, a fit ends as if it had never stopped: with the same
samples under each optimiser step, the same learning rates, validations, ends of epochs,
`global_step` and `current_epoch`. `Ledger.training_step` asserts the x axis of the loggers.
"""

from pathlib import Path
from typing import Any

import pytest
from chains import Variant
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from toy import Ledger, Snapshots, ToyData, bare_trainer, make_trainer

ACCUMULATED = {"samples": 28}  # 7 batches: the last window is shorter
VARIANTS = [
    Variant("max_epochs"),
    Variant("no validation", data={"val_samples": 0}),
    Variant("accumulate 3", {"accumulate_grad_batches": 3}, ACCUMULATED),
    Variant("several sets", {"val_check_interval": 0.5}, data={"val_sets": (5, 1, 3)}),
    Variant("limit_train_batches .5", {"limit_train_batches": 0.5}),
    Variant("estimated steps, max_steps", {"max_steps": 18}, model={"estimates": True}),
    Variant("schedule by epoch", model={"schedule": "epoch"}),
    # and where CI has no time
    Variant("several sets, max_steps", {"max_steps": 18}, data={"val_sets": (5, 1, 3)}),
    Variant("max_steps, no validation", {"max_steps": 18}, {"val_samples": 0}),
    Variant("accumulate, max_steps", {"accumulate_grad_batches": 2, "max_steps": 12}, ACCUMULATED),
    Variant("val_check_interval 2", {"val_check_interval": 2}),
    Variant("val_check_interval 4", {"val_check_interval": 4}),
    Variant("val_check_interval .5, max_steps", {"val_check_interval": 0.5, "max_steps": 18}),
    Variant("each 4 batches", {"val_check_interval": 4, "check_val_every_n_epoch": None}),
    Variant("every second epoch", {"check_val_every_n_epoch": 2, "max_epochs": 4}),
    Variant("every second epoch, max_steps", {"check_val_every_n_epoch": 2, "max_steps": 24}),
    Variant("limit_train_batches 4, max_steps", {"limit_train_batches": 4, "max_steps": 12}),
    Variant("limit_val_batches 0", {"limit_val_batches": 0, "num_sanity_val_steps": 0}),
    Variant("reload every epoch", {"reload_dataloaders_every_n_epochs": 1}),
    Variant("estimated steps", model={"estimates": True}),
    Variant("balanced", data={"remainder": "balanced"}),
    Variant("schedule by step", model={"schedule": "step"}),
    Variant("manual optimisation", model={"manual": True}),
]


def fit(
    folder: Path, variant: Variant, checkpoint: Path | None = None, callbacks: Any = ()
) -> dict[str, Any]:
    model, trainer = Ledger(**variant.model), make_trainer(folder, callbacks, **variant.trainer)
    trainer.fit(model, ToyData(**variant.data), ckpt_path=checkpoint)
    ends = {"global_step": trainer.global_step, "current_epoch": trainer.current_epoch}
    return model.told() | ends


def failures(folder: Path, variant: Variant, wanted: slice) -> dict[str, Any]:
    """What differs after a resume, by the name of its checkpoint."""
    snapshots = Snapshots(folder)
    whole = fit(folder, variant, callbacks=[snapshots])
    stops = list(snapshots.saved.items())[wanted]
    assert len(stops) >= 15
    found: dict[str, Any] = {}
    for name, path in stops:
        resumed = fit(folder, variant, path)
        differences = {
            key: (resumed[key], whole[key]) for key in whole if resumed[key] != whole[key]
        }
        if differences:
            found[name] = differences
    return found


@pytest.mark.parametrize("variant", VARIANTS[:7], ids=lambda variant: variant.name)
def test_a_resumed_fit_ends_as_if_it_had_never_stopped(variant, tmp_path):
    """Stopped around an epoch's end: around the end of the fit where `max_steps` is that."""
    at_end = slice(-20, None) if "max_steps" in variant.trainer else slice(-45, -22)
    assert failures(tmp_path, variant, at_end) == {}


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_fit_resumed_from_any_hook_ends_as_if_it_had_never_stopped(variant, tmp_path):
    assert failures(tmp_path, variant, slice(None)) == {}


@pytest.mark.filterwarnings("ignore:When using `Trainer.accumulate_grad_batches != 1.` and over")
@pytest.mark.parametrize("make", [make_trainer, bare_trainer])
def test_a_schedule_of_accumulation_holds_in_the_rest_of_an_epoch(make, tmp_path):
    """Lightning's scheduler acts at the start of an epoch alone."""

    def schedule():
        return GradientAccumulationScheduler({0: 2, 1: 3})

    snapshots, whole = Snapshots(tmp_path), Ledger()
    make(tmp_path, callbacks=[schedule(), snapshots]).fit(whole, ToyData(val_samples=0))
    # without ExactResume an open window is lost, and a last batch, too, is one within its epoch
    numbers = range(18) if make is make_trainer else (1, 3, 8)
    for number in numbers:
        resumed, path = Ledger(), snapshots.saved[f"on_train_batch_end-{number}"]
        trainer = make(tmp_path, callbacks=[schedule()], enable_checkpointing=False)
        trainer.fit(resumed, ToyData(val_samples=0), ckpt_path=path)
        assert resumed.steps == whole.steps, number


def test_plateau_schedules_follow_a_validation_that_the_resumed_fit_has_run(tmp_path):
    """A checkpoint holds no metric: one from after the validation cannot step them."""
    variant = Variant("plateau", model={"schedule": "plateau"})
    found = failures(tmp_path, variant, slice(-45, -22))
    assert set(found) <= {
        f"{hook}-{epoch}"
        for hook in ("on_validation_end", "on_train_epoch_end")
        for epoch in (0, 1)
    }
