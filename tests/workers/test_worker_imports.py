"""What worker processes import: the main script only if something in it travels."""

import multiprocessing
import sys
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from lightning_shards.errors import ConfigError
from lightning_shards.workers.worker_imports import (
    MAIN_NAMES,
    modules_of,
    require_sendable,
)


class Adds:
    """A transform with something in it."""

    def __init__(self, what=None):
        self.what = what

    def __call__(self, label):
        return label


@pytest.fixture
def make_module(monkeypatch):
    """Makes modules that hold a transform and what else they are given."""

    def make(name, **things):
        module = ModuleType(name)
        kind = type("Transform", (Adds,), {"__module__": name, "__qualname__": "Transform"})
        vars(module).update(things, Transform=kind)
        monkeypatch.setitem(sys.modules, name, module)
        return kind

    return make


def imports_main(source):
    return bool(MAIN_NAMES & modules_of(source))


@pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
def test_the_main_script_is_imported_where_something_of_it_travels(
    name, make_module, pack_shards, make_source, monkeypatch
):
    kind = make_module(name, __spec__=ModuleSpec("train", None))  # as `python -m train` has it
    monkeypatch.setitem(sys.modules, "__main__", sys.modules[name])
    urls = pack_shards([4])
    for what in (kind(), partial(kind()), Adds(kind), Adds([{"deep": kind}])):
        assert imports_main(make_source(urls, transforms={"label": what}))
    assert not imports_main(make_source(urls, transforms={"label": Adds("__main__")}))


NO_SCRIPTS = {
    "a notebook": {},
    "python -m package": {"__spec__": ModuleSpec("package.__main__", None), "__file__": __file__},
    "a folder": {"__spec__": ModuleSpec("__main__", None), "__file__": __file__},
}


@pytest.mark.parametrize("told", NO_SCRIPTS.values(), ids=NO_SCRIPTS)
def test_what_is_defined_in_a_main_that_workers_do_not_import_cannot_be_sent(
    told, make_module, pack_shards, make_source
):
    kind = make_module("__main__", **told)
    for what in (kind(), partial(kind()), Adds(kind)):
        source = make_source(pack_shards([4]), transforms={"label": what})
        with pytest.raises(
            ConfigError, match=r"label. is .*Transform is defined in __main__, .*top level of a"
        ):
            require_sendable(source)


def test_of_two_transforms_the_one_that_cannot_travel_is_named(pack_shards, make_source):
    value = multiprocessing.get_context("spawn").Value("i", 7)
    transforms = {"label": Adds(value), "key": Adds(lambda: None)}
    source = make_source(
        pack_shards([4]), transforms=transforms, fields={"label": "cls", "key": "txt"}
    )
    with pytest.raises(ConfigError, match=r"^the transform of .key. is Adds, which cannot be sent"):
        require_sendable(source)
