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
from functools import partial
from pathlib import Path

from lightning_shards.dataprep.writer import ShardWriter
from lightning_shards.shards import tables  # noqa: F401 - imported before the forks
from lightning_shards.tools import index, pack, reshard

OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "fcntl.flock"}
MAX_OPERATIONS = 400


def write_samples(arguments):
    count, *options = arguments
    with ShardWriter(options[-1], max_samples=7, cache_dir=options[1]) as writer:
        for number in range(int(count)):
            writer.write({"__key__": f"{number:04d}", "bin": bytes([number]) * number * 9})


TOOLS = {"pack": pack.main, "reshard": reshard.main, "index": index.main, "writer": write_samples}


def start(tool, arguments, disturb=None):
    """Run the tool in a fork, which first calls `disturb` if that is given."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        if disturb is not None:
            os.dup2(silent, 2)
            disturb()
        TOOLS[tool](arguments)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    finally:
        os._exit(status)


def disturb_at(operation, out, called):
    """Kill this process before file operation number `operation` on the output."""
    numbers = itertools.count()

    def count():
        if next(numbers) == operation:
            called.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, details):
        is_of_output = event == "fcntl.flock" or out in str(details[:1])
        if event in OPERATIONS and is_of_output:
            count()

    sync = os.fsync  # has no audit event
    os.fsync = lambda file: (count(), sync(file), count())[1]
    sys.addaudithook(hook)


def finish(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def contents(folder):
    """What readers see, by path: all but hidden files and those in hidden folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    }


def check(out, reference, *, is_finished):
    there = contents(out) if out.is_dir() else {}
    wrong = [name for name, data in there.items() if reference.get(name) != data]
    if wrong:
        raise AssertionError(f"not what the reference has: {wrong}")
    indexes = [name for name in there if name.endswith("wids.json")]
    for listing in indexes:
        folder = listing.removesuffix("wids.json")
        missing = [name for name in reference if name.startswith(folder) and name not in there]
        if folder and missing:
            raise AssertionError(f"{listing} is there, {missing} not")
    if is_finished and there != reference:
        raise AssertionError(f"missing: {sorted(reference.keys() - there.keys())}")
    if is_finished and (left := list(out.rglob(".*.part"))):
        raise AssertionError(f"left over: {left}")


def run_again(tool, arguments, out, reference):
    code = finish(start(tool, arguments))
    is_whole = tool == "writer" and code == 70 and (out / "wids.json").exists()
    if code and not is_whole:  # ShardWriter refuses a finished folder
        raise AssertionError(f"the run after the kill ended with {code}")
    check(out, reference, is_finished=True)


def disturb_each(tool, arguments, out, reference):
    for operation in range(MAX_OPERATIONS):
        shutil.rmtree(out, ignore_errors=True)
        called = out.parent / "called"
        called.unlink(missing_ok=True)
        disturb = partial(disturb_at, operation, out.name, called)
        code = finish(start(tool, arguments, disturb))
        if not called.exists():
            check(out, reference, is_finished=True)
            return operation
        if code != -signal.SIGKILL:
            raise AssertionError(f"ended with {code} and not by the signal")
        check(out, reference, is_finished=False)
        run_again(tool, arguments, out, reference)
    raise AssertionError(f"more than {MAX_OPERATIONS} file operations")


def main():
    folder, tool, *arguments = sys.argv[1:]
    folder = Path(folder)
    out, whole = folder / "out", folder / "reference"
    run = [*arguments, "--cache-dir", str(folder / "cache")]
    if tool != "writer":
        run += ["--processes", "1", "--output" if tool == "index" else "--out"]
    if finish(start(tool, [*run, str(whole)])):
        raise AssertionError("the reference run failed")
    reference = contents(whole)
    run.append(str(out))
    sys.stdout.write(str(disturb_each(tool, run, out, reference)))


if __name__ == "__main__":
    main()
