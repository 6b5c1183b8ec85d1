"""The example for plain torch runs, and learns."""

import re
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "plain_torch.py"


def test_plain_torch_learns_digits(tmp_path, forked_programs):
    command = [EXAMPLE, "--folder", tmp_path, "--epochs", "2"]
    output, statuses = forked_programs.run(command, tmp_path, environment={"HOME": str(tmp_path)})
    assert statuses == [0], output
    accuracy = re.search(r"val accuracy: (\d+\.\d)%", output)
    assert accuracy is not None
    assert float(accuracy[1]) > 70
