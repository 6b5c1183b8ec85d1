"""Plants bugs, one at a time, and says which of them no test finds: `python -m tests.mutants`.

Each bug is planted in a copy of the project, where the tests that it names are run: one of them
must fail. First all these tests are run without a bug, and must pass. The exit status is 0 if every
bug was planted and found.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.catalogue import MUTANTS
from tests.mutants.planting import CannotPlantError, Mutant, plant

ROOT = Path(__file__).parents[2]
COPIED = ("lightning_shards", "tests", "configs", "examples", "pyproject.toml", "README.md")
LIMIT_S = 600
FOUND, PASSED = 1, 0  # exit statuses of pytest


def main() -> int:
    """Plant what was asked for; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only bugs whose description has one of these")
    parser.add_argument("--jobs", type=int, default=2, help="bugs tried side by side")
    parser.add_argument("--unchecked", action="store_true", help="not first without a bug")
    options = parser.parse_args()
    words = options.words or [""]
    mutants = [each for each in MUTANTS if any(word in str(each) for word in words)]
    if not options.unchecked and not _are_green(mutants):
        print("the tests fail without any bug; mend them first")
        return 2
    missed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, verdict in zip(mutants, pool.map(_verdict, mutants), strict=True):
            missed += verdict != "found"
            print(f"{verdict}: {mutant}", flush=True)
    print(f"{len(mutants)} bugs planted, {missed} not found")
    return min(missed, 1)


def _are_green(mutants: list[Mutant]) -> bool:
    """Whether all tests that the bugs name pass on the project as it is."""
    paths = sorted({path for mutant in mutants for path in mutant.test_paths})
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = _copied(Path(folder))
        return _pytest(root, [*paths, "-n", "2", "--dist", "loadfile"], len(paths)) == PASSED


def _verdict(mutant: Mutant) -> str:
    """`found`, or what happened instead."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = _copied(Path(folder))
        try:
            plant(mutant, root)
        except (CannotPlantError, FileNotFoundError) as error:
            return f"NOT PLANTED ({error})"
        status = _pytest(root, ["-x", *mutant.test_paths])
    if status == FOUND or (isinstance(status, int) and status < 0):  # a test failed, or crashed all
        return "found"
    return "NOT FOUND" if status == PASSED else f"pytest ended with {status}"


def _copied(folder: Path) -> Path:
    """A copy of the project in this folder."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def _pytest(root: Path, arguments: list[str], files: int = 1) -> int | str:
    """The exit status of pytest in a copy of the project."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    try:
        ended = subprocess.run(
            command,
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S * files,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "a time-out"
    if ended.returncode not in (FOUND, PASSED) or (files > 1 and ended.returncode):
        print(ended.stdout.decode(errors="replace")[-3000:])
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
