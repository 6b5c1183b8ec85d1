"""What the module gets of a mixture whose components differ in their fields."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from lightning_shards import ShardDataModule
from tests.mixed_shards import mix_of, module_of

NAMES = ("web", "more")


class Keeping(pl.LightningModule):
    """Keeps the batches that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.batches: list[dict[str, Any]] = []

    def training_step(self, batch: Any) -> torch.Tensor:
        self.batches.append(batch)
        return self.weight * batch["label"].float().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def negative(values: torch.Tensor) -> torch.Tensor:
    return -1 - values.int()


def module(folder: Path, names: tuple[str, str], **settings: Any) -> ShardDataModule:
    """Batches of one component each; those of `more` have a mask and no image."""
    fields = {"fields": {"label": "cls", "mask": "png"}, "decode": {"mask": "gray"}}
    mix = mix_of(folder / "shards", names, more=fields)
    split = {"unit": 8, "round": 6, "dataset_size": 96}
    return module_of(folder, mix, split, **settings)


@pytest.mark.parametrize(
    ("names", "batch_keys"), [(NAMES, None), (NAMES[::-1], ["__key__"])], ids=str
)
def test_device_transforms_go_by_the_fields_that_a_batch_has(
    names, batch_keys, make_trainer, tmp_path
):
    """Which batches lack a field is no surprise, whichever component comes first in the mix."""
    model = Keeping()
    transforms = dict.fromkeys(("label", "image", "mask"), negative)
    data = module(tmp_path, names, device_transforms=transforms, batch_keys=batch_keys)
    make_trainer(max_epochs=1).fit(model, data)
    kinds = {"web": 0, "more": 0}
    for batch in model.batches:
        [name] = {key[:-3] for key in batch["__key__"]}
        numbers = [int(key[-3:]) for key in batch["__key__"]]
        pixels = batch["image" if name == "web" else "mask"]
        assert ("image" in batch, "mask" in batch) == (name == "web", name == "more")
        assert batch["label"].tolist() == [-1 - number for number in numbers]
        assert pixels[:, 0, 0, 0].tolist() == batch["label"].tolist()
        kinds[name] += 1
    assert kinds == {"web": 10, "more": 2}
