"""python examples/hydra_train.py data=each_once trainer.max_epochs=2: experiments by hydra.

The configuration is examples/conf: train.yaml, and a file for each choice of `data`. A run leaves
its configuration and its logs in a folder of its own in outputs/. A sweep over both choices:
python examples/hydra_train.py --multirun data=digits,each_once
"""

from pathlib import Path

import hydra
import lightning.pytorch as pl
from omegaconf import DictConfig
from quickstart import DigitsNet, pack_digits

from lightning_shards import DataThroughputMonitor, SetEpoch, ShardDataModule


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(config: DictConfig) -> None:
    """Train with the settings that hydra composed."""
    pack_digits(Path(config.shards))
    data = ShardDataModule.from_config(config)  # takes the section `data`, and checks it
    callbacks = [SetEpoch(), DataThroughputMonitor()]
    trainer = pl.Trainer(**config.trainer, callbacks=callbacks)
    trainer.fit(DigitsNet(**config.model), data)
    if "val_accuracy" in trainer.callback_metrics:  # not with data.val=null
        trainer.print(f"val accuracy: {trainer.callback_metrics['val_accuracy']:.1%}")


if __name__ == "__main__":
    main()
