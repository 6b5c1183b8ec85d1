"""Writing tools that are killed, or whose disk is full: nothing partial, and the next run mends it.

`killed_runs.py` compares with an undisturbed run after each kill (what readers see is a part of
it, an index only where all is whole) and after the run that follows (it is all of it, byte for
byte).
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_shards.dataprep.writer import ShardWriter

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("killed_runs.py")
FUNCTIONS = """
def is_kept(sample):
    return len(sample["bin"]) % 3 > 0

def mark(sample):
    return sample | {"txt": "marked"}
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "marks.py").write_text(FUNCTIONS)
    for label in ("a", "b"):
        (folder / "files" / label).mkdir(parents=True)
        for number in range(20):
            (folder / "files" / label / f"{label}{number}.bin").write_bytes(bytes(number * 100))
    with ShardWriter(folder / "shards", max_samples=15, cache_dir=folder / "cache") as writer:
        for number in range(40):
            writer.write({"__key__": f"{number:03d}", "bin": bytes(number * 100)})
    return folder


@pytest.fixture
def disturb(inputs, tmp_path):
    """Runs the program over one of the tools; gives its report."""
    edit = ("--filter=marks:is_kept", "--map=marks:mark", "--order", "shuffled")
    tools = {
        "pack": ("pack", "files", "--val-fraction", "0.3"),
        "edit": ("reshard", "shards/*.tar", *edit, "--max-samples", "12"),
        "index": ("index", "shards/*.tar", "--format", "wids,members"),
        "writer": ("writer", "16"),
    }

    def run(mode, tool):
        command = [sys.executable, PROGRAM, tmp_path, mode, *tools[tool]]
        done = subprocess.run(
            list(map(str, command)),
            cwd=inputs,
            env={"PYTHONPATH": ":".join([*filter(None, sys.path), str(inputs)])},
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("tool", ["pack", "edit", "index", "writer"])
def test_killed_at_any_file_operation_a_run_ends_as_if_it_had_not_been(disturb, tool):
    assert disturb("each", tool)["disturbed"] > 10


@pytest.mark.parametrize("tool", ["pack", "writer"])
def test_a_full_disk_leaves_nothing_partial(disturb, tool):
    assert 0 not in disturb("full", tool)["codes"]
