"""Data, trainers, one fit for each switch, and programs, for all tests of this folder."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fit_recorder import SWITCHES, TRAIN, VAL, CountedModule, Recorder, Run
from ignored_warnings import ignored_below

from lightning_shards import LoaderConfig, SplitConfig
from tests.callbacks.quiet_fits import quiet_trainer

collect_ignore_glob = ["run_*.py"]  # programs, which find `watching` beside them

HERE = Path(__file__).parent

pytest_collection_modifyitems = ignored_below(  # what Lightning's `_pytree.py` does with torch 2.13
    __file__, "`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
)


@pytest.fixture(scope="session")
def make_data(pack_into, tmp_path_factory):
    """Makes data modules over one set of shards; each option of theirs can be given."""
    folder = tmp_path_factory.mktemp("data")
    urls = {"train": pack_into(folder, TRAIN, "train"), "val": pack_into(folder, VAL, "val")}

    def made(kind=CountedModule, *, sampling=None, reader="auto", **options):
        defaults: dict[str, Any] = {
            "fields": {"image": "png", "label": "cls"},
            "decode": {"image": "gray"},
            "batch_size": 2,
            "num_workers": 0,
            "loader": LoaderConfig(cache_dir=str(folder / "cache")),
            "train": SplitConfig(urls["train"], sampling=sampling, reader=reader),
            "val": SplitConfig(urls["val"]),
        }
        return kind(**(defaults | options))

    return made


@pytest.fixture(scope="session")
def make_trainer(tmp_path_factory):
    """Makes trainers that say and write nothing by themselves."""
    folder = tmp_path_factory.mktemp("trainer")

    def made(callbacks=(), **options):
        ends = None if {"max_steps", "fast_dev_run"} & options.keys() else 3
        defaults = {"max_epochs": ends, "enable_checkpointing": bool(callbacks)}
        return quiet_trainer(folder, callbacks, **defaults | options)

    return made


@pytest.fixture(scope="session")
def run_of(make_data, make_trainer):
    """One fit for each switch, made when it is first asked for."""

    @cache
    def run(switch):
        fitted = Run(Recorder(), make_data(), make_trainer(**SWITCHES[switch][0]))
        fitted.trainer.fit(fitted.model, fitted.data)
        return fitted

    return run


class Records:
    """What the ranks of a program wrote down, and what the program printed."""

    def __init__(self, folder: Path, output: str) -> None:
        self.folder, self.output = folder, output

    def of(self, case: str, rank: int) -> dict[str, Any]:
        """What a rank saw in a case."""
        return json.loads((self.folder / f"{case}-{rank}.json").read_text())

    def steps(self, case: str, rank: int) -> dict[tuple[int, int], list[list[int]]]:
        """The ids that a rank trained on, by epoch and step."""
        return {(epoch, step): ids for epoch, step, ids in self.of(case, rank)["steps"]}


@pytest.fixture(scope="session")
def option_shards(tmp_path_factory, pack_into):
    """Makes folders with the same tiny shards for training and validation."""

    def packed(name):
        folder = tmp_path_factory.mktemp(name)
        pack_into(folder, (5, 9, 0, 12), "train")  # in 6 steps of 2 x 2
        pack_into(folder, (3, 4), "val")  # in 2 steps
        return folder

    return packed


def fail_with_errors(folder: Path, output: str) -> None:
    """Fail with what the ranks wrote down of their errors."""
    records = [json.loads(path.read_text()) for path in folder.glob("*-[01].json")]
    errors = [record["error"] for record in records if "error" in record]
    pytest.fail("\n".join([*errors, output[-3000:]]), pytrace=False)


@pytest.fixture(scope="session")
def run_program(start_program):
    """Runs a program of this folder to its end; one that hangs is ended, with all it started."""

    def run(folder, program, arguments=(), launcher=()):
        command = [sys.executable, *launcher, str(HERE / program), str(folder), *arguments]
        with start_program(command, folder) as process:
            try:
                output, _ = process.communicate(timeout=280)
            except subprocess.TimeoutExpired as error:
                ended = sorted(path.name for path in folder.glob("*.json"))
                pytest.fail(f"no end; ended {ended}; said {str(error.output)[-3000:]}")
        if process.returncode:
            fail_with_errors(folder, output)
        return Records(folder, output)

    return run


@pytest.fixture(scope="session")
def run_forked(forked_programs):
    """Runs a program of this folder to its end on two ranks that have imported Lightning."""

    def run(folder, program):
        command = [HERE / program, folder]
        output, statuses = forked_programs.run(command, folder, ranks=2, timeout_s=280)
        if any(statuses):
            fail_with_errors(folder, output)
        return Records(folder, output)

    return run
