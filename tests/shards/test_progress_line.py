"""Nothing of a bar is left to a program that uses threads."""

import subprocess
import sys

from lightning_shards.shards.progress_line import progress_bar


def test_nothing_is_drawn_where_stderr_is_closed(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with progress_bar("counted", 1, " shards") as step:
        step()


def test_neither_a_thread_nor_a_start_method_comes_with_it():
    """tqdm by itself starts a thread, and no start method can be set any more."""
    program = (
        "import multiprocessing, sys, threading\n"
        "from lightning_shards.shards.progress_line import progress_bar\n"
        "with progress_bar('counted', 1, ' shards') as step: step()\n"
        "multiprocessing.set_start_method('spawn')\n"
        "print(threading.active_count(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"1 False\n"
