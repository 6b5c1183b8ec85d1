"""`benchmarks/device.py` finds nothing wrong with this machine's CPU."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_all_checks_of_a_device_are_green_on_the_cpu(forked_programs):
    command = ["benchmarks/device.py", "--device", "cpu", "--num-workers", "0"]
    output, statuses = forked_programs.run(command, ROOT)
    assert statuses == [0], output
    lines = output.splitlines()
    assert [line.split(":")[0].split() for line in lines[:3]] == [
        ["ok", "same_bytes"],
        ["ok", "monitor"],
        ["ok", "resumed"],
    ]
    assert lines[3] == "0 of 3 checks failed on cpu, nodes: 1"
