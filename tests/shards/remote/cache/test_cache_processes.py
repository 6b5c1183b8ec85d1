"""The cache where processes are killed at any time, and where any system call fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cached_bytes import FILE

HERE = Path(__file__).parent


def run(script, *arguments):
    path = os.pathsep.join([str(HERE.parents[3]), str(HERE)])
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    ended = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout


def happened(folder, **settings):
    folder.mkdir(mode=0o700)
    return json.loads(run("killed_processes.py", folder, json.dumps(settings)))


def check(seen, settings):
    assert seen["wrong"] == 0
    assert seen["left"] == 0
    assert seen["largest"] <= (settings["limit"] + settings["processes"]) * FILE
    assert seen["kills"] > settings["seconds"] * settings["kills_per_s"] / 9
    assert seen["loaded"] > 50


def test_killed_processes_leave_nothing_wrong(tmp_path):
    settings = {
        "processes": 5,
        "pieces": 60,
        "limit": 6,
        "seconds": 1.5,
        "kills_per_s": 40,
        "seed": 1,
    }
    check(happened(tmp_path / "cache", **settings), settings)


def test_while_nothing_is_evicted_pieces_are_fetched_once(tmp_path):
    settings = {
        "processes": 5,
        "pieces": 200,
        "limit": 200,
        "seconds": 1.0,
        "kills_per_s": 10,
        "seed": 2,
    }
    seen = happened(tmp_path / "cache", **settings)
    check(seen, settings)
    # a process that is killed has fetched one piece in vain at most
    assert seen["distinct"] <= seen["fetched"] <= seen["distinct"] + seen["kills"]


@pytest.mark.matrix
@pytest.mark.parametrize("limit", [20, 200])
def test_32_processes_for_a_minute(tmp_path, limit):
    settings = {
        "processes": 32,
        "pieces": 200,
        "limit": limit,
        "seconds": 60,
        "kills_per_s": 8,
        "seed": limit,
    }
    seen = happened(tmp_path / "cache", **settings)
    check(seen, settings)
    assert limit < 200 or seen["fetched"] <= 1.05 * 200


@pytest.mark.slow
def test_no_failing_call_leaves_a_wrong_byte(tmp_path):
    lines = run("failing_calls.py", tmp_path).splitlines()
    failed = dict(line.split() for line in lines)
    assert set(failed) == {"EIO", "ENOSPC", "EINTR", "SIGKILL"}
    assert min(map(int, failed.values())) > 50
