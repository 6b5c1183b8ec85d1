"""The example of detection: boxes are padded with their pictures, and found."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ddp,
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]


@pytest.fixture
def detection(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("HOME", str(tmp_path))  # caches lie there
    return import_module("examples.detection")


def test_squares_are_found(detection, monkeypatch, tmp_path):
    batches: list[dict[str, Any]] = []
    step = detection.Detector.training_step

    def kept(self, batch):
        batches.append(batch)
        return step(self, batch)

    monkeypatch.setattr(detection.Detector, "training_step", kept)
    trainer = detection.main(str(tmp_path / "squares"), 600, **QUIET)
    assert trainer.callback_metrics["val_right"] > 0.9
    assert len(batches) == 3 * 24
    for batch in batches:
        lengths = batch["boxes_length"]
        assert batch["boxes"].shape == (25, int(lengths.max()), 4)
        assert batch["boxes"].dtype == torch.float32
        sums = batch["boxes"].sum((1, 2))
        assert torch.equal(sums > 0, lengths > 0)
        for image, boxes, length in zip(batch["image"], batch["boxes"], lengths, strict=True):
            for left, top, right, bottom in boxes[:length].int().tolist():
                assert image[:, top:bottom, left:right].min() >= 150  # its own boxes
