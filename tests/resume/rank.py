"""python tests/resume/rank.py FOLDER: one rank of a fit; FOLDER/told-RANK.json has it."""

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from toy import Ledger, ToyData, fit_until


def join() -> None:
    """Be what torchrun would have started."""
    rank, world_size = os.environ.get("LOCAL_RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    os.environ |= {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": "0",
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": os.environ.get("MASTER_PORT", "0"),  # one rank alone takes any
        "TORCHELASTIC_RUN_ID": "tests",
    }


def fit(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    stop: Any = (tuple(job["stop"]) if job["stop"] else None, job["raises"])
    strategy = DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=60))
    options = {"strategy": strategy, "devices": job["world_size"]} | job["trainer"]
    data = ToyData(job["batch_size"], **job["data"])
    return fit_until(folder, Ledger(**job["model"]), data, job["checkpoint"], stop, **options)


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    join()
    told = fit(folder, json.loads((folder / "job.json").read_text()))
    torch.distributed.destroy_process_group()
    (folder / f"told-{os.environ['RANK']}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
