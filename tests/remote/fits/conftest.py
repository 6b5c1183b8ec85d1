"""Fits from remote shards on forked ranks, and the rows that each rank was given."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COUNTS = [24, 17, 31]


class Fits:
    """Fits of one test, one after the other."""

    def __init__(self, programs, folder):
        self._programs, self.folder, self._number = programs, folder, 0

    def job(self, urls, *, ranks=1, **given):
        """The file of a new job."""
        self._number += 1
        folder = self.folder / f"fit-{self._number}"
        folder.mkdir()
        loader = {"cache_dir": str(self.folder / "cache")} | given.pop("loader", {})
        settings = {"epochs": 2, "global_batch": 4, "saves": False} | given
        job = {"urls": urls, "ranks": ranks, "folder": str(folder), "loader": loader} | settings
        (folder / "job.json").write_text(json.dumps(job))
        return folder / "job.json"

    def run(self, urls, **given):
        """Run a fit to its end: its folder, what it said, and how its ranks ended."""
        path = self.job(urls, **given)
        command = [HERE / "rank.py", path]
        said, statuses = self._programs.run(command, path.parent, ranks=given.get("ranks", 1))
        return path.parent, said, statuses

    def started(self, path):
        """A fit of one rank that runs."""
        return self._programs.started([HERE / "rank.py", path], path.parent)


def rows_of_ranks(folder):
    """By epoch and step, what each rank was given, in the order of the ranks."""
    found = defaultdict(list)
    for path in sorted(folder.glob("rows-*.jsonl")):
        for line in path.read_text().splitlines():
            told = json.loads(line)
            found[told["epoch"], told["step"]].append(told["rows"])
    return dict(found)


@pytest.fixture
def fits(forked_programs, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o700)
    return Fits(forked_programs, tmp_path)


@pytest.fixture
def local_paths(pack_shards):
    return pack_shards(COUNTS)
