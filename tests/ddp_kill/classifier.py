"""What `run_evaluation.py` runs: a model of whole numbers, so that its metrics are exact."""

import json
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torchmetrics

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig

HARMLESS = [
    "`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning 2.6.6 with torch 2.13
]


class Classifier(pl.LightningModule):
    """Takes every third gray value for that of the class after its own."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = torchmetrics.Accuracy(
            "multiclass", num_classes=10, average="micro", ignore_index=-1
        )
        self.brightness = torchmetrics.MeanMetric()
        self.samples = torchmetrics.SumMetric()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = images[:, 0, 0, 0].long()
        return (values + (values % 3 == 0)) % 10

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        weights = batch["__weight__"]
        labels = batch["label"].masked_fill(weights == 0, -1)
        self.accuracy.update(self(batch["image"]), labels)
        self.brightness.update(batch["image"][:, 0, 0, 0].float(), weights)
        self.samples.update(weights)
        for name in ("accuracy", "brightness", "samples"):
            self.log(name, getattr(self, name), on_step=False, on_epoch=True)

    test_step = validation_step


def make_data(job: dict[str, Any], case: dict[str, Any]) -> ShardDataModule:
    folder = job["folder"]
    return ShardDataModule(
        val=SplitConfig(f"{folder}/val-*.tar", remainder=case["remainder"]),
        test=SplitConfig(f"{folder}/test-*.tar", remainder=case["remainder"]),
        fields={"image": "png", "label": "cls"},
        decode={"image": "gray"},
        batch_size=case["batch_size"],
        num_workers=0,
        loader=LoaderConfig(cache_dir=f"{folder}/cache"),
    )


def evaluate(path: Path) -> None:
    """Run all cases; a warning is an error."""
    warnings.simplefilter("error")
    for message in HARMLESS:
        warnings.filterwarnings("ignore", message=message)
    torch.set_num_threads(1)
    job = json.loads(path.read_text())
    told: dict[str, Any] = {}
    for case in job["cases"]:
        trainer = pl.Trainer(
            strategy="ddp",
            accelerator="cpu",
            devices=job["ranks"],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=job["folder"],
        )
        for split, run in (("val", trainer.validate), ("test", trainer.test)):
            (metrics,) = run(Classifier(), datamodule=make_data(job, case), verbose=False)
            told[f"{split} {case['name']}"] = metrics
    end = Path(job["folder"]) / f"end-{trainer.global_rank}.json"
    end.write_text(json.dumps(told))
