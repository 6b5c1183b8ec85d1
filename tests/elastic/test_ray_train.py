"""Ray Train with a worker that is killed: each sample once, and each validation once."""

import os
import shlex
import sys
import tempfile
from contextlib import contextmanager, suppress
from importlib import import_module

import psutil
import pytest
from elastic_runs import HERE, check_ledger, kill_all

pytestmark = [pytest.mark.ddp, pytest.mark.matrix, pytest.mark.timeout(600)]


@pytest.fixture
def ray_train():
    """Skips where it is not installed, but in CI."""
    try:
        import_module("ray.train")
    except ImportError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"needs Ray Train: {error}")


@contextmanager
def ended_with_all_below(pid):
    """Whatever a process had started when this is entered is ended with it, by its pid."""
    below = psutil.Process(pid).children(recursive=True)
    try:
        yield
    finally:
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(below, timeout=30)


@pytest.mark.usefixtures("ray_train")
def test_a_worker_of_ray_train_is_killed(launchers_of):
    launchers = launchers_of((2, 15, "1"), num_workers=1)
    folder = launchers.run.folder
    with tempfile.TemporaryDirectory(prefix="ray") as temporary:  # short, for names of its sockets
        command = [sys.executable, HERE / "run_ray_train.py", folder, temporary]
        driver = launchers.start_shell(shlex.join(map(str, command)), RAY_USAGE_STATS_ENABLED="0")
        worker = launchers.run.wait_for_stop(0)
        with ended_with_all_below(driver):
            kill_all([worker])
            assert launchers.wait_for_end(driver) == 0
    check_ledger(folder, [2, 2])
