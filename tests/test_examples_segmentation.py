"""The example for images and masks runs, and learns; both are cropped alike."""

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLE = Path(__file__).parent.parent / "examples" / "segmentation.py"


@pytest.mark.slow
@pytest.mark.ddp
def test_segmentation_learns_where_disks_are(tmp_path, forked_programs):
    environment = {"HOME": str(tmp_path)}
    output, statuses = forked_programs.run([EXAMPLE], tmp_path, environment=environment)
    assert statuses == [0], output
    accuracy = re.search(r"accuracy of pixels: (\d+\.\d)%", output)
    assert accuracy is not None
    assert float(accuracy[1]) > 90


def test_the_crop_is_that_of_both_and_a_missing_mask_is_unknown(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE.parents[1]))
    crop_alike = import_module("examples.segmentation").crop_alike
    pixels = torch.arange(48 * 48).reshape(1, 48, 48)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        cropped = crop_alike({"image": pixels, "mask": pixels + 1}, rng)
        assert cropped["mask"].equal(cropped["image"][0] + 1)
        assert cropped["mask"].shape == (32, 32)
    assert (crop_alike({"image": pixels, "mask": None}, rng)["mask"] == 255).all()


def test_it_is_short_and_begins_with_its_command():
    lines = EXAMPLE.read_text().splitlines()
    assert lines[0].startswith('"""python examples/segmentation.py')
    assert len(lines) < 100
