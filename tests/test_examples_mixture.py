"""The example of a mixture runs, learns, and passes its small set as often as it says."""

import re
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "mixture.py"


@pytest.mark.slow
@pytest.mark.ddp
def test_the_small_set_is_passed_20_times_while_the_large_one_is_passed_once(
    tmp_path, forked_programs
):
    environment = {"HOME": str(tmp_path)}
    output, statuses = forked_programs.run([EXAMPLE], tmp_path, environment=environment)
    assert statuses == [0], output
    assert "crawl: 1,440 digits, each trained 1x\n" in output
    assert "by_hand: 60 digits, each trained 20x\n" in output
    assert "120 steps of 1 x 22 samples (0 dropped, 0 repeated)" in output
    assert "crawl: weight 6 of 11, 1,440 samples an epoch (1 pass)" in output
    assert "by_hand: weight 5 of 11, 1,200 samples an epoch (20 passes)" in output
    recognised = re.search(r"digits recognised: (\d+)%", output)
    assert recognised is not None
    assert int(recognised[1]) > 80  # one in ten by chance
