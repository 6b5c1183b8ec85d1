"""Each planted bug of the catalogue, `python -m tests.mutants`, has its place in the package."""

import importlib
from collections import Counter
from pathlib import Path

from tests.mutants.__main__ import ROOT
from tests.mutants.planting import BUGS, PACKAGE, module_of

MOST_LINES = 8


def test_each_bug_acts_on_one_name_of_the_package():
    for bug in BUGS:
        path = module_of(bug, ROOT).relative_to(ROOT / PACKAGE).with_suffix("")
        owner = importlib.import_module(".".join((PACKAGE, *path.parts)))
        *classes, name = bug.target.split(".")
        for each in classes:
            owner = getattr(owner, each)
        assert name in vars(owner), bug


def test_each_bug_is_small_and_names_tests_that_there_are():
    for bug in BUGS:
        assert bug.source.count("\n") <= MOST_LINES, bug
        assert [path for path in bug.test_paths if not Path(ROOT, path).is_file()] == [], bug


def test_each_guarantee_has_five_bugs():
    guarantees = Counter(bug.guarantee for bug in BUGS)
    assert min(guarantees.values()) >= 5, guarantees
