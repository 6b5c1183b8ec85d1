"""python tests/trainer/run_matrix.py FOLDER: one of two ranks; runs the cases in FOLDER/cases.json.

What a rank saw in a case goes to FOLDER/CASE-RANK.json.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping
from watching import Watching, children, fail_on_warnings, make_data, trainer_options, write

from lightning_shards.workers.fork_server import fork_server

fail_on_warnings()  # here, as workers and spawned ranks import this script too


def make_trainer(folder: Path, case: dict[str, Any]) -> pl.Trainer:
    more = [EarlyStopping("score", patience=1, mode="max")] if case.get("stops_early") else []
    options = trainer_options(folder, more)
    common = {"strategy": "ddp", "devices": 2, "max_epochs": 2}
    return pl.Trainer(**options | common | case["trainer"])


def run(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """One case: a fit, or what comes without one."""
    data = make_data(folder, case["reader"], num_workers=case["num_workers"])
    model = Watching()
    trainer = make_trainer(folder, case)
    if case.get("evaluates"):
        trainer.validate(model, data, verbose=False)
        trainer.test(model, data, verbose=False)
        predicted = trainer.predict(model, data)
        return model.seen | {"predicted": predicted, "left": children()}
    trainer.fit(model, data)
    return model.seen | {"global_step": trainer.global_step, "left": children()}


def main(folder: Path) -> None:
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    # one for all fits, since each takes half a second of a core to start
    fork_server.end_unused = lambda: None
    for case in json.loads((folder / "cases.json").read_text()):
        try:
            write(folder, case["name"], rank, run(folder, case))
        except Exception:
            write(folder, case["name"], rank, {"error": traceback.format_exc()})
            raise


if __name__ == "__main__":
    main(Path(sys.argv[1]))
