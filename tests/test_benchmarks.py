"""The pages of `benchmarks`, the names that they take, and the check of a device."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import report
from benchmarks.remote import report as remote_report

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize(
    ("name", "write"), [("peers", report.write_report), ("remote", remote_report.write_report)]
)
def test_a_page_shows_the_results_that_were_measured(name, write):
    results = json.loads((RESULTS / f"{name}.json").read_text())
    assert write(results) == (RESULTS / f"{name}.md").read_text()


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


@pytest.mark.parametrize("module", ["benchmarks.peers", "benchmarks.remote"])
def test_a_misspelt_name_is_refused_before_anything_is_made(module):
    command = [sys.executable, "-m", module, "--peers", "nobody"]
    run = subprocess.run(  # noqa: PLW1510 its status is looked at
        command, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 2
    assert "not nobody" in run.stderr
