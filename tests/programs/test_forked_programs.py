"""A forked program is what `python SCRIPT` would be after its imports."""

import json
import os
import signal
import time
from contextlib import suppress

import psutil
import pytest

TELLS = """
import json, os, random, signal, sys, tempfile
from pathlib import Path

told = {
    "imported": [name for name in ("torch", "lightning.pytorch", "lightning_shards.build.sources",
                 "lightning_shards.workers.fork_server") if name in sys.modules],
    "threads": len(os.listdir("/proc/self/task")),
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "stdin": sys.stdin.read(),
    "arguments": sys.argv,
    "main": [__name__, __file__, sys.modules["__main__"].__file__, sys.path[0]],
    "folder": os.getcwd(),
    "temporary": tempfile.gettempdir(),
    "environment": dict(os.environ),
    "session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "signals": [signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
                signal.getsignal(signal.SIGINT) == signal.default_int_handler],
    "hash": hash("a word"),
}
import numpy, torch
from lightning.pytorch.utilities import rank_zero_only
told["draws"] = [random.random(), numpy.random.random(), float(torch.rand(1)), torch.initial_seed()]
told["torch_threads"] = torch.get_num_threads()
told["rank"] = rank_zero_only.rank
Path(f"told-{os.environ.get('LOCAL_RANK')}.json").write_text(json.dumps(told))
print("told all")
"""


@pytest.fixture
def run(tmp_path, forked_programs):
    """Runs some code as a program in a folder of its own."""

    def ran(code, *arguments, **options):
        (tmp_path / "program.py").write_text(code)
        return forked_programs.run(["program.py", *arguments], tmp_path, **options)

    return ran


@pytest.fixture
def told(tmp_path, run):
    """What a program on so many ranks finds."""

    def tell(ranks, **options):
        assert run(TELLS, "a", 1, ranks=ranks, **options) == ("told all\n" * ranks, [0] * ranks)
        names = [None] if ranks == 1 else range(ranks)
        return [json.loads((tmp_path / f"told-{name}.json").read_text()) for name in names]

    return tell


def test_it_is_the_main_script_in_a_process_without_threads(told, tmp_path):
    [found] = told(1)
    script = str(tmp_path / "program.py")
    assert found["arguments"] == ["program.py", "a", "1"]
    assert found["main"] == ["__main__", script, script, str(tmp_path)]
    assert found["folder"] == str(tmp_path)
    expected = ["torch", "lightning.pytorch", "lightning_shards.build.sources"]
    assert found["imported"] == expected  # and not the fork server, whose end would not come
    assert (found["threads"], found["torch_threads"]) == (1, 1)


def test_it_shares_nothing_with_what_started_it(told, monkeypatch, tmp_path):
    monkeypatch.setenv("ONLY_NOW", "1")
    own = {"HOME": "/nowhere", "TMPDIR": str(tmp_path)}
    [found] = told(1, environment=own)
    assert found["environment"] == dict(os.environ) | own | {"OMP_NUM_THREADS": "1"}
    assert found["temporary"] == str(tmp_path)
    assert found["descriptors"] == [0, 1, 2]
    assert found["stdin"] == ""
    assert found["session"]
    assert found["signals"] == [True, True]


def test_ranks_are_told_what_lightning_tells_them_and_hash_differently(told):
    found = told(3)
    assert [each["rank"] for each in found] == [0, 1, 2]
    for rank, each in enumerate(found):
        assert each["environment"]["LOCAL_RANK"] == str(rank)
        assert each["environment"]["WORLD_SIZE"] == "3"
    assert len({each["environment"]["MASTER_PORT"] for each in found}) == 1
    assert found[0]["hash"] != found[1]["hash"]


def test_it_ends_with_a_status_after_all_that_it_said(run):
    output, statuses = run("import sys; sys.exit('no more')")
    assert (output, statuses) == ("no more\n", [1])
    output, statuses = run("print('first', flush=True); 1 / 0")
    assert output.startswith("first\nTraceback")
    assert output.endswith("ZeroDivisionError: division by zero\n")
    assert statuses == [1]
    assert run("import os; os.kill(os.getpid(), 9)").statuses == [-signal.SIGKILL]


def test_nothing_that_it_started_outlives_it(run, tmp_path):
    """What holds its output is waited for; what does not is ended."""
    code = """
import subprocess
subprocess.Popen("sleep 0.3; echo late", shell=True)
quiet = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
open("pid", "w").write(str(quiet.pid))
"""
    assert run(code).output == "late\n"
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_one_that_does_not_end_is_ended_and_the_next_one_runs(run, tmp_path):
    code = "import os, time; open('pid', 'w').write(str(os.getpid())); print(1, flush=True)"
    with pytest.raises(TimeoutError, match=r"no end after 1 s; said 1\n"):
        run(f"{code}; time.sleep(60)", timeout_s=1)
    assert is_gone(int((tmp_path / "pid").read_text()))
    assert run("print(2)") == ("2\n", [0])


def is_gone(pid):
    """Whether it has ended, or does within five seconds of the signal that ends it."""
    end = time.perf_counter() + 5
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            if time.perf_counter() > end:
                return False
            time.sleep(0.01)
    return True
