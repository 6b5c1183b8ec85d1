"""What a predicate kept is found out again when its source changes, or what it holds."""

import importlib
import itertools
import os
import sys
from functools import partial

import pytest

from lightning_shards.shards.filters import applying
from lightning_shards.shards.filters.applying import digest_of_predicate
from tests.shards.filters.filtered_shards import applied, numbers_left

MODULE = """
import functools

LEAST = 5

def long(shard, more=0):
    return shard.sizes("txt") >= LEAST + more

def made(least):
    def over(shard):
        return shard.sizes("txt") >= least
    return over

class Over:
    def __init__(self, least):
        self.least = least

    def __call__(self, shard):
        return shard.sizes("txt") >= self.least

by_object, by_closure, by_held = Over(LEAST), made(LEAST), functools.partial(long)
by_lambda = lambda shard: long(shard)
"""
NAMES = ["long", "by_object", "by_closure", "by_held"]


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """What imports the module of a user, which was written long before or just now."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path, seconds = tmp_path / "module_of_a_user.py", itertools.count(1000)

    def load(text=MODULE, *, is_old=True):
        path.write_text(text)
        if is_old:
            os.utime(path, (next(seconds),) * 2)
        sys.modules.pop("module_of_a_user", None)
        importlib.invalidate_caches()
        return importlib.import_module("module_of_a_user")

    yield load
    sys.modules.pop("module_of_a_user", None)


@pytest.mark.parametrize("name", NAMES)
def test_another_source_is_another_filter(imported, urls, cache, name):
    for least in (5, 6, 5):
        user = imported(MODULE.replace("LEAST = 5", f"LEAST = {least}"))
        kept = applied(urls, cache, keep=getattr(user, name))
        assert numbers_left(kept) == list(range(least, 30))


def test_equal_sources_and_values_are_the_same_filter_in_another_process(
    imported, tmp_path, start_program
):
    told = [digest_of_predicate(getattr(imported(), name)) for name in NAMES]
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import module_of_a_user as user;"
        "from lightning_shards.shards.filters.applying import digest_of_predicate as digest;"
        "print(*(digest(getattr(user, name)) for name in sys.argv[2:]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path), *NAMES]
    with start_program(command, tmp_path) as process:
        assert process.communicate(timeout=300)[0].split() == told


def test_another_value_that_it_holds_or_another_version_is_another_filter(imported):
    user = imported()
    held = [partial(user.long), partial(user.long, more=1), partial(user.long, more=2)]
    held += [user.made(3), user.made(4), user.Over(3), user.Over(4)]
    held += [partial(user.made(3)), partial(user.made(4)), partial(user.Over(4))]
    digests = set(map(digest_of_predicate, held))
    for user.long.version in (1, 2):
        digests.add(digest_of_predicate(user.long))
    for user.Over.version in (1, 2):
        digests.add(digest_of_predicate(user.by_object))
    assert len(digests) == len(held) + 4


@pytest.mark.parametrize("name", ["edited", "by_lambda", "unpicklable", "without a source"])
def test_what_cannot_be_recognised_is_asked_again_by_each_start(
    imported, urls, cache, name, monkeypatch, caplog
):
    caplog.set_level("INFO")
    user = imported(is_old=name != "edited")
    given = {"by_lambda": user.by_lambda, "unpicklable": user.made(5)}
    predicate = given.get(name, user.long)
    if name == "unpicklable":
        predicate.lock = applying.logging._lock
    if name == "without a source":
        for attribute in ("__file__", "__loader__", "__spec__"):
            monkeypatch.setattr(user, attribute, None)
    assert numbers_left(applied(urls, cache, keep=predicate)) == list(range(5, 30))
    assert "holds for this process alone" in caplog.text
    before = digest_of_predicate(predicate)
    assert digest_of_predicate(predicate) == before
    monkeypatch.setattr(applying, "_STARTED", applying._STARTED + 1)  # as in another process
    if name != "edited":  # its file was written before that process
        assert digest_of_predicate(predicate) != before
