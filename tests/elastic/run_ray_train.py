"""python tests/elastic/run_ray_train.py RUN TEMPORARY: the page's program on two CPUs.

RUN is the folder of a run with its `overrides.yaml`, and TEMPORARY one for Ray's own files. Ray is
imported only where it is used, as pytest imports this file too.
"""

import sys
from pathlib import Path

import lightning.pytorch as pl
import yaml

from lightning_shards import EpochDigest, ExactResume, ShardDataModule


def train(run: dict[str, str]) -> None:
    from elastic_recorder import ElasticRecorder
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer

    settings = yaml.safe_load(Path(run["folder"], "overrides.yaml").read_text())
    (saver,) = settings["trainer"].pop("callbacks")
    saver = pl.callbacks.ModelCheckpoint(**saver["init_args"])
    trainer = pl.Trainer(
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        devices="auto",
        callbacks=[ExactResume(), EpochDigest(), saver],
        **settings["trainer"],
    )
    model = ElasticRecorder(**settings["model"]["init_args"])
    data = ShardDataModule.from_config(settings["data"])
    prepare_trainer(trainer).fit(model, data, ckpt_path="last")


def main(folder: str, temporary: str) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(address="local", num_cpus=2, include_dashboard=False, _temp_dir=temporary)
    TorchTrainer(
        train,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=(1, 2)),
        run_config=RunConfig(
            storage_path=f"{folder}/ray", failure_config=FailureConfig(max_failures=3)
        ),
    ).fit()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
