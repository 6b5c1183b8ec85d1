"""python tests/resume/rank.py RANK: one rank of groups of any size; a fit a line, until stdin ends.

Processes are started once, and belong to a new group with each fit. A line on stdin is a fit as
JSON, the answer is a line on stdout that begins with ANSWER.
"""

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from toy import Ledger, Snapshots, StopHereError, ToyData, make_trainer

ANSWER = "ANSWER "


def join(rank: int, world_size: int, port: int) -> None:
    """Be what torchrun would have started."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "tests",
    }


def fit(job: dict[str, Any]) -> dict[str, Any]:
    folder = Path(job["folder"])
    model = Ledger(**job["model"])
    stop: Any = tuple(job["stop"]) if job["stop"] else None
    callbacks = [Snapshots(folder, stop)] if stop else []
    strategy = DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=60))
    trainer = make_trainer(
        folder, callbacks, strategy=strategy, devices=job["world_size"], **job["trainer"]
    )
    data = ToyData(job["batch_size"], **job["data"])
    saved = None
    try:
        trainer.fit(model, data, ckpt_path=job["checkpoint"])
    except StopHereError:
        saved = str(next(iter(callbacks[0].saved.values())))
    return model.told() | {"saved": saved, "current_epoch": trainer.current_epoch}


def main(rank: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for line in sys.stdin:
        job, answer = json.loads(line), {}
        if rank < job["world_size"]:
            join(rank, job["world_size"], job["port"])
            try:
                answer = fit(job)
            except Exception as error:  # noqa: BLE001 the test shows it
                answer = {"error": f"{type(error).__name__}: {error}"}
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
        print(ANSWER + json.dumps(answer), flush=True)  # noqa: T201 the way back


if __name__ == "__main__":
    main(int(sys.argv[1]))
