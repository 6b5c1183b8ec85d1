"""What the cache guarantees, in the names of its tests: processes may be killed at any time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cached_bytes import FILE
from killed_readers import LIMIT, READERS

HERE = Path(__file__).parent


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.matrix)])
def test_killed_readers_leave_no_wrong_byte_and_exceed_the_limit_by_a_piece_each(seconds, tmp_path):
    ended = subprocess.run(
        [sys.executable, HERE / "killed_readers.py", tmp_path, str(seconds)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parents[2]), str(HERE)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    killed, most, found = map(int, ended.stdout.split())
    assert killed > 5 * seconds
    assert most <= (LIMIT + READERS) * FILE
    assert found > LIMIT // 2
