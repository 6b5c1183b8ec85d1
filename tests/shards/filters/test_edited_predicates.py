"""A function whose module was edited after the import is not taken for the function in the file."""

import importlib
import sys

import pytest

from lightning_shards.shards.filters.predicates import digest_of_predicate
from tests.shards.filters.filtered_shards import applied, numbers_left

MODULE = """
import numpy as np

def least():
    return 3

def keep(shard):
    return np.array([int(key) >= least() for key in shard.keys])

class Keep:
    def __call__(self, shard):
        return keep(shard)

keep_object = Keep()
"""
EDITS = {
    "another number": MODULE.replace("return 3", "return 7"),
    "another function of that name": MODULE + "def least():\n    return 7\n",
    "half written": "def keep(",
}


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """What writes the module of a user and imports it, or only writes it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def edit(text, *, is_imported=True):
        (tmp_path / "edited_module.py").write_text(text)
        if is_imported:
            sys.modules.pop("edited_module", None)
            importlib.invalidate_caches()
            return importlib.import_module("edited_module")
        return sys.modules["edited_module"]

    yield edit
    for name in ("edited_module", "decorating_module"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["keep", "keep_object"])
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_what_the_imported_function_keeps_is_not_that_of_the_edited_one(
    edited, urls, cache, name, edit
):
    edited(MODULE)
    user = edited(edit, is_imported=False)
    assert numbers_left(applied(urls, cache, keep=getattr(user, name)))[0] == 3
    if "(shard)" in edit:  # as the next process imports it
        user = edited(edit)
        assert numbers_left(applied(urls, cache, keep=getattr(user, name)))[0] == 7


def test_a_function_that_has_run_is_still_that_of_the_file(edited, urls, cache, recwarn):
    user = edited(MODULE.replace("import numpy", "SPACE = '\\ '\nimport numpy"))
    recwarn.clear()  # the import tells of the escape
    before = digest_of_predicate(user.keep)
    for _ in range(100):  # after some calls, Python puts faster code in its place
        user.least()
    assert numbers_left(applied(urls, cache, keep=user.keep))[0] == 3
    assert digest_of_predicate(user.keep) == before
    assert not recwarn.list


DECORATING = """
import functools

def later(function):
    @functools.wraps(function)
    def kept(shard):
        return function(shard) & [int(key) >= 5 for key in shard.keys]
    return kept
"""


def test_the_module_of_a_decorator_counts(edited, tmp_path, urls, cache):
    text = MODULE.replace("def keep(", "@later\ndef keep(")
    for least in (5, 6):
        decorating = DECORATING.replace("5", str(least))
        (tmp_path / "decorating_module.py").write_text(decorating)
        sys.modules.pop("decorating_module", None)
        user = edited("from decorating_module import later\n" + text)
        assert numbers_left(applied(urls, cache, keep=user.keep))[0] == least
