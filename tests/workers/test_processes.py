"""Worker processes: they fail loudly and end with whoever started them."""

import gc
import os
import signal
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import psutil
import pytest

from lightning_shards.errors import SampleError, WorkerError
from lightning_shards.loader import ShardLoader
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.workers.fork_server import fork_server
from lightning_shards.workers.processes import ProcessPool
from lightning_shards.workers.worker_imports import require_main_guard, require_sendable

pytestmark = pytest.mark.ddp


def first_batch(pool, source):
    stream = pool.start(source, Place(), Cursor())
    try:
        return next(stream).batch
    finally:
        stream.close()


def refuse(label):
    raise RuntimeError(f"no {label}")


def test_an_error_brings_the_users_part_of_the_stack_of_its_worker(pack_shards, make_source):
    source = make_source(pack_shards([4]), transforms={"label": refuse})
    with pytest.raises(SampleError) as caught:
        first_batch(ProcessPool(1, start_method="fork"), source)
    cause = str(caught.value.__cause__)
    assert "in refuse\n" in cause
    assert "\nRuntimeError: no " in cause
    assert "in _transformed" not in cause


# --- scripts without a main guard -----------------------------------------------------------------


@pytest.fixture
def run_as_main(tmp_path, monkeypatch):
    """Makes a text the main script, as far as one can see from its module."""

    def run(text, name=None):
        file = tmp_path / "main.py"
        file.write_bytes(text)
        main = ModuleType("__main__")
        main.__file__ = str(file)
        main.__spec__ = ModuleSpec(name, None) if name else None
        monkeypatch.setitem(sys.modules, "__main__", main)

    return run


class OfMain:
    """A transform as if it were defined in the main script."""

    def __call__(self, label):
        return label


OfMain.__module__ = "__main__"


def test_a_script_without_a_main_guard_is_told_what_to_do(run_as_main, pack_shards, make_source):
    run_as_main(b"print()")
    sys.modules["__main__"].OfMain = OfMain
    source = make_source(pack_shards([4]), transforms={"label": OfMain()})
    for start_method in ("forkserver", "spawn"):
        with pytest.raises(WorkerError, match=r"(?s)main.py has no `if __name__ .* num_workers=0"):
            first_batch(ProcessPool(1, start_method=start_method), source)
    first_batch(ProcessPool(1, start_method="fork"), source)


def test_a_script_of_which_nothing_travels_needs_no_guard(run_as_main, pack_shards, make_source):
    run_as_main(b"print()")
    source = make_source(pack_shards([4]), transforms={"label": refuse})
    require_sendable(source)


@pytest.mark.parametrize(("text", "name"), [(b"print()", "package.__main__"), (b"PK\xff", None)])
def test_what_workers_do_not_import_needs_no_guard(run_as_main, text, name):
    run_as_main(text, name)
    require_main_guard()


# --- epochs ---------------------------------------------------------------------------------------


def test_dropping_a_loader_ends_its_workers(pack_shards, make_source):
    """Nobody called close(): an exception left the loop, and the loader with it."""
    loader = ShardLoader(
        make_source(pack_shards([9])), ProcessPool(2, start_method="fork"), Place()
    )
    next(iter(loader))
    processes = [psutil.Process(worker.pid) for worker in loader._open.stream._workers]
    del loader
    gc.collect()
    assert psutil.wait_procs(processes, timeout=10)[1] == []


SIGNALS = [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM]


class TellsHandlers:
    """Gives the pid of its worker, and whether a handler of Python's is left in it."""

    deterministic = True

    def __call__(self, label):
        numbers = signal.valid_signals() - {signal.SIGINT}
        handlers = map(signal.getsignal, numbers)
        return [os.getpid(), *(callable(handler) for handler in handlers)]


@pytest.fixture
def handled():
    """Handles signals in this process and gives those that have come."""
    came = []
    numbers = [*SIGNALS[:3], signal.SIGWINCH, signal.SIGRTMIN]
    before = {
        number: signal.signal(number, lambda number, _: came.append(number)) for number in numbers
    }
    yield came
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("start_method", ["forkserver", "fork"])
def test_signals_of_a_launcher_are_left_to_the_trainer(
    start_method, handled, pack_shards, make_source
):
    """SLURM sends `--signal` to every process of a step, and so do some to a process group."""
    source = make_source(pack_shards([40]), transforms={"label": TellsHandlers()})
    pool = ProcessPool(1, prefetch_factor=1, start_method=start_method)
    stream = pool.start(source, Place(), Cursor())
    try:
        pid, *has_handlers = next(stream).batch["label"][0]
        server = [fork_server.pid] if start_method == "forkserver" else []
        for number in SIGNALS:
            for process in (int(pid), *server):
                os.kill(process, number)
        for _ in range(40):
            next(stream)
        if server:  # it still forks
            first_batch(pool, source)
    finally:
        stream.close()
    assert not any(has_handlers)
    assert handled == []
