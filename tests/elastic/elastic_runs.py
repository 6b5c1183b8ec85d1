"""Runs that launchers start again, and what the final weights of such a run were trained on."""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
from forked_programs import ForkedPrograms, Running, free_port
from waiting import is_alive, is_running, wait_for

HERE = Path(__file__).parent
CONFIG = HERE.parents[1] / "configs" / "elastic.yaml"
WITHIN_S = 180.0  # on two busy cores
TRAIN, VAL, EPOCHS = (150, 0, 130, 120), (8, 13), 2
BATCH_SIZE = 3
FAST = "last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3"
ENVIRONMENT = {
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONPATH": f"{HERE.parents[1]}:{HERE}:{os.environ.get('PYTHONPATH', '')}",
}


OVERRIDES = """
trainer:
  accelerator: cpu
  precision: 32-true
  max_epochs: EPOCHS
  logger: false
  enable_progress_bar: false
  default_root_dir: FOLDER
  callbacks:
  - class_path: ModelCheckpoint
    init_args: {dirpath: FOLDER/saved, every_n_train_steps: 4, save_last: true}
model:
  class_path: elastic_recorder.ElasticRecorder
  init_args: {folder: FOLDER, stops: STOPS}
data:
  train: {urls: "FOLDER/train-*.tar", sampling: shuffled, shuffle_run: 4}
  val: {urls: "FOLDER/val-*.tar", transforms: {}}
  fields: {label: cls}
  transforms: {}
  device_transforms: {}
  batch_size: BATCH_SIZE
  num_workers: 0
  loader: {cache_dir: FOLDER/cache}
"""


def all_ids(counts: Sequence[int]) -> Counter[tuple[int, int]]:
    return Counter((shard, number) for shard, count in enumerate(counts) for number in range(count))


def check_ledger(folder: Path, ranks: list[int]) -> list[int]:
    """Each sample of each epoch once, but for less than a global batch; each validation once.

    Returns:
        The first one of the steps that the final weights have from so many ranks, then so many.
    """
    trained, validated = json.loads((folder / "ledger.json").read_text())
    numbers = [None, *(of_step[0] for of_step in trained)]
    firsts = [step for step in range(len(trained)) if numbers[step] != numbers[step + 1]]
    assert [trained[first][0] for first in firsts] == ranks
    samples = Counter((epoch, *sample) for _, epoch, ids in trained for sample in ids)
    assert set(samples.values()) == {1}
    assert {epoch for epoch, *_ in samples} == set(range(EPOCHS))
    for epoch in range(EPOCHS):
        of_epoch = Counter(sample[1:] for sample in samples if sample[0] == epoch)
        assert of_epoch <= all_ids(TRAIN)
        assert of_epoch.total() > sum(TRAIN) - max(ranks) * BATCH_SIZE
    assert Counter((epoch, *sample) for epoch, ids in validated for sample in ids) == Counter(
        (epoch, *sample) for epoch in range(EPOCHS) for sample in all_ids(VAL)
    )
    return firsts


def block_of_page(language: str, begin: str) -> str:
    """The code block of docs/resume.md that begins so."""
    page = (HERE.parents[1] / "docs" / "resume.md").read_text()
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if block.startswith(begin))
    return block


def kill_all(pids: Sequence[int]) -> None:
    """Kill processes with all that is below them, first those that would start others."""
    processes = [psutil.Process(pid) for pid in pids]
    below = [child for process in processes for child in process.children(recursive=True)]
    for process in (*processes, *below):
        if is_alive(process):
            process.kill()
    assert wait_for(lambda: not any(map(is_alive, (*processes, *below))), WITHIN_S)


class Launchers:
    """A training that is stopped and goes on, in a folder of its own, and what starts its ranks.

    Nothing of it is left when `stack` is closed.
    """

    def __init__(
        self,
        folder: Path,
        stops: Sequence[tuple[int, int, str]],
        forked: ForkedPrograms,
        stack: ExitStack,
    ) -> None:
        self.folder, self._forked, self._stack = folder, forked, stack
        self.port = free_port()
        self._started: dict[int, tuple[Running, ExitStack]] = {}
        told = OVERRIDES.replace("FOLDER", str(folder)).replace("STOPS", json.dumps(stops))
        told = told.replace("EPOCHS", str(EPOCHS)).replace("BATCH_SIZE", str(BATCH_SIZE))
        (folder / "overrides.yaml").write_text(told)
        self.options = ["fit", "--config", str(CONFIG), "--config", f"{folder}/overrides.yaml"]

    def wait_for_stop(self, number: int) -> int:
        """The pid of the rank that waits at a stop."""
        path = self.folder / f"stop-{number}.json"
        assert wait_for(path.exists, WITHIN_S), f"no rank came to stop {number}"
        return int(json.loads(path.read_text()))

    def start_agent(self, name: str) -> int:
        """Start an agent of torchrun with one rank; that of the name "host" has the store."""
        options = [
            "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--shutdown-timeout=5",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=test",
            f"--rdzv-conf={FAST},is_host={int(name == 'host')}", "--local-addr=127.0.0.1",
            "--redirects=3", f"--log-dir={self.folder}/agents",
        ]  # fmt: skip
        command = ["run_agent.py", *options, "--", *self.options]
        return self._start(command, {"LAUNCHER_NAME": name})

    def start_shell(self, script: str, **environment: str) -> int:
        """Start a script of bash; what it says goes to a file of the run."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        said = f"exec > shell-{len(self._started)}.txt 2>&1\n"
        command = ["run_command.py", "bash", "-c", said + script]
        return self._start(command, {"PATH": path} | environment)

    def _start(self, command: list[str], environment: dict[str, str]) -> int:
        own = self._stack.enter_context(ExitStack())
        started = self._forked.started(
            [HERE / command[0], *command[1:]],
            self.folder,
            environment=ENVIRONMENT | environment,
        )
        running = own.enter_context(started)
        (pid,) = running.pids
        self._started[pid] = running, own
        return pid

    def wait_for_end(self, pid: int) -> int:
        """The exit status of a launcher, which ends by itself."""
        running, own = self._started[pid]
        assert wait_for(lambda: not is_running(pid), WITHIN_S), "a launcher did not end"
        own.close()
        return running.statuses[0]
