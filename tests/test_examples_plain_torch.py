"""The example for plain torch runs, and learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "plain_torch.py"


def test_plain_torch_learns_digits(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--folder", tmp_path, "--epochs", "2"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"val accuracy: (\d+\.\d)%", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 70


def test_it_is_short_and_begins_with_its_command():
    lines = EXAMPLE.read_text().splitlines()
    assert lines[0].startswith('"""python examples/plain_torch.py')
    assert len(lines) < 100
