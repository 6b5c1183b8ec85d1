"""python examples/experiments.py each_once data.batch_size=8: experiments by omegaconf alone.

A run is a base, the changes of an experiment, and options of the command line; later ones win. The
splits are structured configs: a misspelt key or a wrong type is refused where it is merged. What
was run is saved beside its logs, and is an experiment itself:
python examples/experiments.py lightning_logs/version_0/experiment.yaml trainer.max_epochs=8
"""

import argparse
from pathlib import Path

import lightning.pytorch as pl
from omegaconf import DictConfig, OmegaConf
from quickstart import DigitsNet, pack_digits

from lightning_shards import DataThroughputMonitor, SetEpoch, ShardDataModule, SplitConfig

BASE = {
    "shards": "data/digits",
    "model": {"learning_rate": 3e-3},
    "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 4, "log_every_n_steps": 10},
    "data": {
        "train": {"urls": "${shards}/train/train-*.tar"},
        "val": {"urls": "${shards}/val/val-*.tar"},
        "fields": {"image": "png", "label": "cls"},
        "decode": {"image": "gray"},
        "batch_size": 32,
        "num_workers": 2,
    },
}
EXPERIMENTS = {
    "base": {},
    "each_once": {"data": {"train": {"sampling": "shuffled"}}},
    "small_steps": {"data": {"batch_size": 8}, "model": {"learning_rate": 1e-3}},
}


def read_experiment(name: str, options: list[str]) -> DictConfig:
    """The settings of a run, whose experiment has a name or is a file."""
    splits = {split: OmegaConf.structured(SplitConfig) for split in ("train", "val")}
    experiment = EXPERIMENTS[name] if name in EXPERIMENTS else OmegaConf.load(name)
    changes = OmegaConf.merge(experiment, OmegaConf.from_dotlist(options))
    if unknown := changes.keys() - BASE.keys():
        raise SystemExit(f"no such section: {', '.join(unknown)}; there are {', '.join(BASE)}")
    return OmegaConf.merge({"data": splits}, BASE, changes)


def main() -> None:
    """Train, and keep what was run."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("name", nargs="?", default="base", help=", ".join(EXPERIMENTS))
    parser.add_argument("options", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    experiment = read_experiment(arguments.name, arguments.options)
    pack_digits(Path(experiment.shards))
    data = ShardDataModule.from_config(experiment)  # takes the section `data`, and checks it all
    callbacks = [SetEpoch(), DataThroughputMonitor()]
    trainer = pl.Trainer(**experiment.trainer, callbacks=callbacks)
    trainer.fit(DigitsNet(**experiment.model), data)
    OmegaConf.save(experiment, Path(trainer.log_dir) / "experiment.yaml")
    if "val_accuracy" in trainer.callback_metrics:  # not with data.val=null
        trainer.print(f"val accuracy: {trainer.callback_metrics['val_accuracy']:.1%}")


if __name__ == "__main__":
    main()
