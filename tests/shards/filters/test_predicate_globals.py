"""A kept filter is found out again when a global that its predicate reads has another value."""

import importlib
import sys
import threading
from functools import partial

import numpy as np
import pytest

from lightning_shards.shards.filters.predicates import digest_of_predicate
from lightning_shards.shards.filters.value_digests import ValueDigests
from tests.shards.filters.filtered_shards import applied, numbers_left

MODULE = """
import dataclasses, functools, os, pathlib, re, threading
import numpy as np

TEXT = pathlib.Path(__file__).with_name("good.txt").read_text()
GOOD = frozenset(TEXT.split())
LEAST = int(TEXT.split()[0])
ARRAY = np.array([[LEAST, 3]])
PATTERN = re.compile(rf"0*{LEAST}")
NESTED = {"a": [LEAST, {"b": (GOOD,)}]}
UNREAD = threading.Lock()
LOADED = None

def by_set(shard):
    return np.isin(shard.keys, list(GOOD))

def by_number(shard):
    return np.array([int(key) >= LEAST for key in shard.keys])

def by_array(shard):
    return np.array([int(key) >= ARRAY[0, 0] for key in shard.keys])

def by_pattern(shard):
    return np.array([PATTERN.fullmatch(key) is not None for key in shard.keys])

def by_nested(shard):
    def inner():
        return [int(key) >= NESTED["a"][0] for key in shard.keys]
    return np.array(inner())

def by_another_function(shard):
    return by_number(shard)

@functools.cache
def least():
    return LEAST

def by_cached(shard):
    return np.array([int(key) >= least() for key in shard.keys])

class Test:
    at_least = LEAST

    @staticmethod
    def least():
        return LEAST

    def __call__(self, shard):
        return np.array([int(key) >= self.least() for key in shard.keys])

class Other:
    at_least = LEAST

    def keep(self, shard):
        return np.array([int(key) >= self.at_least for key in shard.keys])

by_object, by_method, HELD = Test(), Other().keep, Test()

def by_object_in_a_global(shard):
    return HELD(shard)

@dataclasses.dataclass
class Values:
    at_least: int

    def __call__(self, shard):
        return np.array([int(key) >= self.at_least for key in shard.keys])

by_dataclass = Values(LEAST)

def by_attribute(shard):
    return np.array([int(key) >= by_attribute.begin for key in shard.keys])

by_attribute.begin = LEAST

def turned(function):
    @functools.wraps(function)
    def turn(shard):
        return ~function(shard)
    return turn

@turned
def by_wrapped(shard):
    return np.array([int(key) < LEAST for key in shard.keys])

def loading(shard):
    global LOADED
    LOADED = LOADED or LEAST
    return by_number(shard)
"""
NAMES = [
    "by_set",
    "by_number",
    "by_array",
    "by_pattern",
    "by_nested",
    "by_another_function",
    "by_cached",
    "by_object",
    "by_method",
    "by_object_in_a_global",
    "by_dataclass",
    "by_attribute",
    "by_wrapped",
    "loading",
]


@pytest.fixture
def module_with(tmp_path, monkeypatch):
    """The module of a user, which read these words from a file when it was loaded."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "module_of_a_user.py").write_text(MODULE)

    def load(words):
        (tmp_path / "good.txt").write_text(words)
        sys.modules.pop("module_of_a_user", None)
        importlib.invalidate_caches()
        return importlib.import_module("module_of_a_user")

    yield load
    sys.modules.pop("module_of_a_user", None)


@pytest.mark.parametrize("name", NAMES)
def test_another_value_of_a_global_is_another_filter(module_with, urls, cache, name):
    left = []
    for words in ("0003", "0007", "0003"):
        predicate = getattr(module_with(words), name)
        given = (applied(urls, cache, keep=each) for each in (predicate, partial(predicate)))
        left += [numbers_left(index) for index in given]
    assert left[0] == left[1] == left[4] == left[5] != left[2] == left[3]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "loading"])
def test_equal_values_of_globals_are_the_same_filter(module_with, name):
    digests = {digest_of_predicate(getattr(module_with("0003 9 8 7"), name)) for _ in range(2)}
    assert len(digests) == 1


def test_another_process_has_the_same_digests(module_with, tmp_path, start_program, monkeypatch):
    module_with("3 alpha beta gamma delta")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import module_of_a_user as user;"
        "from lightning_shards.shards.filters.predicates import digest_of_predicate as digest;"
        "print([digest(getattr(user, name)) for name in sys.argv[2:]])"
    )
    told = []
    for seed in "12":
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        command = [sys.executable, "-c", program, str(tmp_path), *NAMES]
        with start_program(command, tmp_path) as process:
            told.append(process.communicate(timeout=300)[0])
    assert told[0] == told[1]
    assert told[0].count(",") == len(NAMES) - 1


def test_a_global_without_a_digest_makes_a_filter_of_this_process(module_with, monkeypatch):
    user = module_with("0003")
    before = digest_of_predicate(user.by_number)
    monkeypatch.setattr(user, "LEAST", threading.Lock())
    told = digest_of_predicate(user.by_number)
    assert told == digest_of_predicate(user.by_number) != before
    monkeypatch.setattr("lightning_shards.shards.filters.value_digests._STARTED", 0)
    assert digest_of_predicate(user.by_number) != told


@pytest.mark.parametrize(
    ("value", "equal", "other"),
    [
        ({8, 0}, {0, 8}, {0, 9}),
        (frozenset({"a", ("b", 8)}), frozenset({("b", 8), "a"}), frozenset({"a", ("b", 9)})),
        ([1, 2], [1, 2], [1, 2.0]),
        ((1, (2, 3)), (1, (2, 3)), (1, 2, 3)),
        ({"a": {8, 0}}, {"a": {0, 8}}, {"a": [0, 8]}),
        (np.arange(3), np.arange(3), np.arange(3, dtype=np.int32)),
        (np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((3, 2))),
        (np.float32(1), np.float32(1), np.float64(1)),
        (b"a", b"a", "a"),
        (range(3), range(3), range(4)),
    ],
)
def test_equal_values_have_equal_digests(value, equal, other):
    digests = ValueDigests([])
    assert digests.digest(value) == digests.digest(equal) != digests.digest(other)


def test_a_value_that_holds_itself_has_a_digest():
    value = [1]
    value.append(value)
    assert ValueDigests([]).digest(value) != ValueDigests([]).digest([1, [1]])
