"""How far a fit has come in each component of its mixture, as the loggers are told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_shards import DataThroughputMonitor
from tests.callbacks.quiet_fits import KeptMetrics, OneWeight, quiet_trainer
from tests.mixed_shards import COUNTS, mix_of, module_of

NAMES = ("web", "labels", "more")
SIZES = {name: sum(COUNTS[name]) for name in NAMES}


class Noting(OneWeight):
    """Notes the components of the rows of each step that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.rows.append(batch["__component__"].tolist() if "__component__" in batch else [])
        return super().training_step(batch, batch_idx)


def module(folder: Path, split: dict[str, Any] | None = None, **settings: Any) -> Any:
    return module_of(folder, mix_of(folder / "shards", NAMES), split, **settings)


def fit(folder: Path, data: Any, **options: Any) -> tuple[Noting, KeptMetrics]:
    model, logger = Noting(), KeptMetrics()
    options |= {"log_every_n_steps": 2, "logger": logger}
    quiet_trainer(folder, [DataThroughputMonitor()], **options).fit(model, data)
    return model, logger


def counted(rows: list[list[int]]) -> dict[str, float]:
    """What is logged after these rows."""
    samples = np.bincount([row for step in rows for row in step], minlength=3).tolist()
    told = dict(zip(NAMES, samples, strict=True))
    passes = {f"data/component/{name}/passes": told[name] / SIZES[name] for name in NAMES}
    return {f"data/component/{name}/samples": told[name] for name in NAMES} | passes


@pytest.mark.parametrize(
    "split",
    [
        {"sampling": "resampled", "reader": "stream"},
        {"schedule": [{"epoch": 1, "weights": {"web": 1, "more": 3}}]},
    ],
)
def test_what_is_logged_is_what_was_trained(tmp_path: Path, split: dict[str, Any]) -> None:
    model, logger = fit(tmp_path, module(tmp_path, split), max_epochs=3)
    assert list(logger.by_step("component")) == [1, 3, 5, 7, 9, 11]
    for step, told in logger.by_step("component").items():
        assert told == pytest.approx(counted(model.rows[: step + 1]))


def test_nothing_is_logged_where_a_cursor_says_nothing_of_components(tmp_path: Path) -> None:
    urls = mix_of(tmp_path / "shards", NAMES)["web"]["urls"]
    own = {"urls": urls, "mix": None, "round": None, "dataset_size": None}
    for data, options in (
        (module_of(tmp_path, {}, own), {}),
        (module(tmp_path), {"overfit_batches": 2}),
    ):
        _, logger = fit(tmp_path, data, max_epochs=2, **options)
        assert logger.by_step("component") == {}
