"""A program that kills runs of a writing tool, runs them again, and compares what is there.

    python killed_runs.py FOLDER TOOL ARGUMENT...

TOOL is `pack`, `reshard`, `index` or `writer`; the output folder is added to its arguments. It is
killed once at each file operation of the run. Everything is imported once and each run is a fork,
so that a run costs no start. FOLDER gets `reference`, the output of an undisturbed run. Prints how
many runs were killed.
"""

import itertools
import os
import shutil
import signal
import sys
from pathlib import Path

from lightning_shards.dataprep.writer import ShardWriter
from lightning_shards.shards import tables  # noqa: F401 - imported before the forks
from lightning_shards.tools import index, pack, reshard
from tests.tools.conftest import seen

OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "fcntl.flock"}
MAX_OPERATIONS = 400
REFUSED = 70  # what a run ends with that raised an error


def write_samples(arguments):
    count, *options = arguments
    with ShardWriter(options[-1], max_samples=7, cache_dir=options[1]) as writer:
        for number in range(int(count)):
            writer.write({"__key__": f"{number:04d}", "bin": bytes([number]) * number * 9})


TOOLS = {"pack": pack.main, "reshard": reshard.main, "index": index.main, "writer": write_samples}


def run(tool, arguments, kill_at=None):
    """How the tool ends in a fork, which is killed before this file operation on its output."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = REFUSED
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if kill_at is not None:
            os.dup2(1, 2)
            count_operations(kill_at, Path(arguments[-1]).name)
        TOOLS[tool](arguments)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    finally:
        os._exit(status)


def count_operations(kill_at, out):
    numbers = itertools.count()

    def count():
        if next(numbers) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, details):
        is_of_output = event == "fcntl.flock" or out in str(details[:1])
        if event in OPERATIONS and is_of_output:
            count()

    sync = os.fsync  # has no audit event
    os.fsync = lambda file: (count(), sync(file), count())[1]
    sys.addaudithook(hook)


def check(out, reference, *, is_finished):
    """What is there is of the reference, and an index only where all of its folder is."""
    there = seen(out)
    wrong = [name for name, data in there.items() if reference.get(name) != data]
    assert not wrong, f"not what the reference has: {wrong}"
    missing = reference.keys() - there.keys()
    for folder in [name.removesuffix("wids.json") for name in there if name.endswith("wids.json")]:
        assert not folder or not any(name.startswith(folder) for name in missing), missing
    if is_finished:
        assert not missing, missing
        assert not list(out.rglob(".*.part"))


def kill_at_each(tool, arguments, out, reference):
    """How many file operations a run has; it is killed at each of them, and run again."""
    for operation in range(MAX_OPERATIONS):
        shutil.rmtree(out, ignore_errors=True)
        ended = run(tool, arguments, operation)
        if ended == 0:
            check(out, reference, is_finished=True)
            return operation
        assert ended == -signal.SIGKILL, ended
        check(out, reference, is_finished=False)
        is_whole = (out / "wids.json").exists() and tool == "writer"  # which refuses it then
        assert run(tool, arguments) == (REFUSED if is_whole else 0)
        check(out, reference, is_finished=True)
    raise AssertionError(f"more than {MAX_OPERATIONS} file operations")


def main():
    folder, tool, *arguments = sys.argv[1:]
    out, whole = Path(folder, "out"), Path(folder, "reference")
    arguments += ["--cache-dir", str(Path(folder, "cache"))]
    if tool != "writer":
        arguments += ["--processes", "1", "--output" if tool == "index" else "--out"]
    assert run(tool, [*arguments, str(whole)]) == 0
    sys.stdout.write(str(kill_at_each(tool, [*arguments, str(out)], out, seen(whole))))


if __name__ == "__main__":
    main()
