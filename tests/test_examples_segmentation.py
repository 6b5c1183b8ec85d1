"""The example for images and masks runs, and learns; both are cropped alike."""

import re
from pathlib import Path

import pytest

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
