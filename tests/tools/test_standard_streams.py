"""Tools whose output nobody reads, or whose streams are closed, still tell what they have found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.conftest import write_members

TOOL = [sys.executable, "-m", "lightning_shards"]
BAD, GOOD = "bad.tar", "good.tar"


@pytest.fixture
def shards(tmp_path):
    """A sound shard and a damaged one, in the folder where tools run."""
    write_members(tmp_path / GOOD, [("0.txt", b"x"), ("1.txt", b"x")])
    data = bytearray((tmp_path / GOOD).read_bytes())
    data[1024] ^= 1
    (tmp_path / BAD).write_bytes(data)
    return tmp_path


@pytest.fixture
def run(shards):
    """Runs a tool with a redirection of the shell's; `unbuffered` as by PYTHONUNBUFFERED."""

    def call(*arguments, redirect="", unbuffered="", stdout=subprocess.PIPE):
        paths = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {redirect}', "sh", *TOOL, *arguments],
            cwd=shards, env=os.environ | paths, timeout=120, check=False,
            stdout=stdout, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        sys.stderr.write(done.stderr)  # by which a test of `schema` is left out without torch
        return done

    return call


@pytest.fixture
def unread():
    """A pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def verify(name):
    return ["verify", name, "--cache-dir", "cache", "--processes", "1"]


@pytest.mark.parametrize(
    ("arguments", "unbuffered", "status"),
    [
        (verify(BAD), "", 1),  # it is known before the output is written
        (verify(BAD), "1", 141),
        (verify(GOOD), "1", 141),
        (["schema"], "", 141),
        (["--help"], "", 0),
        (["--help"], "1", 0),
        (["verify", "--help"], "", 0),
    ],
)
def test_no_verdict_is_told_where_nobody_reads_one(run, unread, arguments, unbuffered, status):
    done = run(*arguments, unbuffered=unbuffered, stdout=unread)
    assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.parametrize(("name", "status"), [(GOOD, 0), (BAD, 1)])
@pytest.mark.parametrize("redirect", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_status(run, redirect, name, status):
    done = run(*verify(name), redirect=redirect)
    assert (done.returncode, done.stderr) == (status, "")
    assert bool(done.stdout) == (redirect == "2>&-")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
@pytest.mark.parametrize("arguments", [["schema"], ["--help"], verify(GOOD)])
def test_output_that_cannot_be_written_is_an_error_of_one_line(run, arguments):
    done = run(*arguments, redirect=">/dev/full")
    assert done.returncode == 2
    assert done.stderr.endswith("No space left on device\n")
    assert done.stderr.count("\n") == 1
