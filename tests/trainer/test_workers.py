"""Worker processes under a Trainer: they go on, end with the fit, and change no sample."""

import signal
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from fit_recorder import Recorder
from watching import children

from lightning_shards import LoaderConfig, ShardDataModule


@pytest.fixture
def keep_sigint():
    """Lightning ignores the signal for good after a KeyboardInterrupt."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


class Failing(Recorder):
    """Notes which processes there are, late in a stage, and raises."""

    def __init__(self, stage: str, error: type[BaseException] | None) -> None:
        super().__init__()
        self.stage, self.error = stage, error
        self.running: set[int] = set()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.fail(self.stage == "training_step" and batch_idx == 3)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.fail(self.stage == "validation_step" and self.current_epoch == 1)
        super().validation_step(batch, batch_idx)

    def fail(self, is_due: bool) -> None:
        if is_due:
            self.running |= {*children()}
            if self.error is not None:
                raise self.error


@pytest.mark.parametrize(
    ("stage", "error"),
    [
        ("validation_step", None),
        ("training_step", ArithmeticError),
        ("validation_step", KeyboardInterrupt),
    ],
)
@pytest.mark.usefixtures("keep_sigint")
def test_no_worker_outlives_a_fit_however_it_ends(stage, error, make_data, make_trainer):
    before = {*children()}
    model = Failing(stage, error)
    loader = LoaderConfig(multiprocessing_context="fork")
    data = make_data(ShardDataModule, num_workers=2, loader=loader)
    # SystemExit is what Lightning makes of a KeyboardInterrupt
    with pytest.raises((ArithmeticError, SystemExit)) if error else nullcontext():
        make_trainer(max_epochs=2).fit(model, data)
    assert len(model.running - before) >= 2  # there were workers to end
    assert {*children()} == before
