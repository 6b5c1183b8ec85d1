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


def fit(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    stop: Any = (tuple(job["stop"]) if job["stop"] else None, job["raises"])
    strategy = DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=60))
    options = {"strategy": strategy, "devices": job["world_size"]} | job["trainer"]
    data = ToyData(job["batch_size"], **job["data"])
    return fit_until(folder, Ledger(**job["model"]), data, job["checkpoint"], stop, **options)


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    told = fit(folder, json.loads((folder / "job.json").read_text()))
    torch.distributed.destroy_process_group()
    (folder / f"told-{os.environ.get('LOCAL_RANK', '0')}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
