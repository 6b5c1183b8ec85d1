"""Writing tools that are killed: nothing partial, and the next run mends it.

`killed_runs.py` compares with an undisturbed run after each kill (what readers see is a part of
it, an index only where all is whole) and after the run that follows (it is all of it, byte for
byte).
"""

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


EDIT = "--filter=marks:is_kept --map=marks:mark --order shuffled --max-samples 12"


@pytest.mark.parametrize(
    "command",
    [
        "pack files --val-fraction 0.3",
        f"reshard shards/*.tar {EDIT}",
        "index shards/*.tar --format wids,members",
        "writer 16",
    ],
)
def test_killed_at_any_file_operation_a_run_ends_as_if_it_had_not_been(inputs, tmp_path, command):
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path, *command.split()],
        cwd=inputs,
        env={"PYTHONPATH": ":".join([*filter(None, sys.path), str(inputs)])},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 10
