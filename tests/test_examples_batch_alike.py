"""The example for batches of like size runs, and shows how much less padding they have."""

import re
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "batch_alike.py"


@pytest.mark.slow
def test_batches_of_like_size_have_little_padding(tmp_path, forked_programs):
    output, statuses = forked_programs.run([EXAMPLE], tmp_path)
    assert statuses == [0], output
    shares = re.findall(r"(\w+): padding is ([\d.]+)% of a batch, ([\d.]+)% with", output)
    notes, tokens = ((name, float(before), float(after)) for name, before, after in shares)
    assert notes == ("notes", 40.8, 0.9)  # as docs/sampling.md says
    assert tokens == ("tokens", 67.6, 4.7)
