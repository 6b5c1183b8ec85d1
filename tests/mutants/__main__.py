"""Plants bugs, one at a time, and says which of them no test finds: `python -m tests.mutants`.

Each bug breaks a guarantee of `docs/guarantees.md`. It is planted in a copy of the project, where
the tests that it names are run: one of them must fail. First all these tests are run without a bug,
and must pass. The exit status is 0 if every bug was planted and found.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants import arithmetic, running
from tests.mutants.planting import BUGS, Bug, CannotPlantError, plant

ROOT = Path(__file__).parents[2]
COPIED = (
    *("lightning_shards", "tests", "benchmarks", "configs", "examples", "docs"),
    *("pyproject.toml", "README.md"),
)
CATALOGUE = (arithmetic, running)  # importing them fills BUGS
LIMIT_S = 600
FOUND, PASSED = 1, 0  # exit statuses of pytest


def main() -> int:
    """Plant what was asked for; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only bugs whose description has one of these")
    parser.add_argument("--jobs", type=int, default=2, help="bugs tried side by side")
    parser.add_argument("--unchecked", action="store_true", help="not first without a bug")
    options = parser.parse_args()
    bugs = [bug for bug in BUGS if any(word in str(bug) for word in options.words or [""])]
    if not options.unchecked and not _are_green(bugs):
        print("the tests fail without any bug; mend them first")
        return 2
    missed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for bug, verdict in zip(bugs, pool.map(_verdict, bugs), strict=True):
            missed += verdict != "found"
            print(f"{verdict}: {bug}", flush=True)
    print(f"{len(bugs)} bugs planted, {missed} not found")
    return min(missed, 1)


def _are_green(bugs: list[Bug]) -> bool:
    """Whether all tests that the bugs name pass on the project as it is."""
    paths = sorted({path for bug in bugs for path in bug.test_paths})
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = _copied(Path(folder))
        return _pytest(root, [*paths, "-n", "2", "--dist", "loadfile"], len(paths)) == PASSED


def _verdict(bug: Bug) -> str:
    """`found`, or what happened instead."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = _copied(Path(folder))
        try:
            plant(bug, root)
        except CannotPlantError as error:
            return f"NOT PLANTED ({error})"
        status = _pytest(root, ["-x", *bug.test_paths])
    if status == FOUND or (isinstance(status, int) and status < 0):  # a test failed, or crashed all
        return "found"
    return "NOT FOUND" if status == PASSED else f"pytest ended with {status}"


def _copied(folder: Path) -> Path:
    """A copy of the project in this folder."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)  # what is compiled, too: it saves seconds
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def _pytest(root: Path, arguments: list[str], files: int = 1) -> int | str:
    """The exit status of pytest in a copy of the project."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environment = os.environ | {"PYTHONPATH": str(root), "HYPOTHESIS_PROFILE": "few"}
    limit_s = LIMIT_S * files
    try:
        ended = subprocess.run(
            command, cwd=root, env=environment, timeout=limit_s, check=False, **output
        )
    except subprocess.TimeoutExpired:
        return "a time-out"
    if ended.returncode not in (FOUND, PASSED) or (files > 1 and ended.returncode):
        print(ended.stdout.decode(errors="replace")[-3000:])
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
