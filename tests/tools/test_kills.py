"""`index` killed at any moment leaves whole files or none, and the same bytes once run again."""

import random
import shutil
import subprocess
from time import perf_counter

import pytest

from tests.tools.conftest import contents, start, write_samples

LIMIT_S = 120
KILLS = 3


def command(processes):
    options = ["--format", "wids,sizes,dali", "--checksums", "--processes", processes]
    return ["index", "data/*.tar", *options, "--cache-dir", "cache"]


def run_whole(folder, processes):
    process = start(*command(processes), cwd=folder)
    _, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, error.decode()


def is_temporary(name):
    return ".part" in name


def visible(folder):
    """What is there under final names; the cache of tables is checked by its own tests."""
    found = contents(folder)
    return {
        name: data
        for name, data in found.items()
        if not name.startswith("cache/") and not is_temporary(name)
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_index_leaves_whole_files_and_can_be_run_again(tmp_path):
    draws = random.Random(0)
    whole, victim = tmp_path / "whole", tmp_path / "victim"
    write_samples(whole / "data", [6] * 24)
    shutil.copytree(whole, tmp_path / "fresh")
    begun = perf_counter()
    run_whole(whole, 1)
    duration = perf_counter() - begun
    expected, hit = visible(whole), 0
    for _ in range(KILLS):
        shutil.rmtree(victim, ignore_errors=True)
        shutil.copytree(tmp_path / "fresh", victim)
        processes = draws.choice([1, 1, 2])
        process = start(*command(processes), cwd=victim)
        try:
            process.wait(timeout=draws.uniform(0.3, 1.0) * duration * (1.5 if processes > 1 else 1))
        except subprocess.TimeoutExpired:
            hit += 1
        if process.returncode is None:
            process.kill()
        process.communicate(timeout=LIMIT_S)  # what it started holds its stderr until it ends, too
        left = visible(victim)
        assert left.items() <= expected.items(), sorted(left.keys() - expected.keys())
        run_whole(victim, draws.choice([1, 2]))
        assert visible(victim) == expected
        assert not [name for name in contents(victim / "data") if is_temporary(name)]
    assert hit, "no run was killed before its end: the delays are too long"
