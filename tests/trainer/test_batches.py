"""What the batches look like to the module."""

from typing import Any

import pytest
import torch
from fit_recorder import STEPS, Recorder

pytestmark = pytest.mark.usefixtures("held_fork_server")


def negative(images: torch.Tensor) -> torch.Tensor:
    return 255 - images


@pytest.mark.parametrize("batch_format", ["tuple", "dict"])
def test_device_transforms_run_and_then_the_modules_own_hook(batch_format, make_data, make_trainer):
    batches: list[Any] = []

    class Module(Recorder):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            images, labels = batch.values() if isinstance(batch, dict) else batch
            return {"image": images.float() / 255, "label": labels, "hook ran": True}

        def training_step(self, batch, batch_idx):
            batches.append(batch)
            return self._loss(batch)

        def validation_step(self, batch, batch_idx):
            batches.append(batch)

    options = {"batch_keys": []} if batch_format == "dict" else {}
    transforms = {"image": negative}
    data = make_data(device_transforms=transforms, batch_format=batch_format, **options)
    make_trainer(max_epochs=1, limit_val_batches=0).fit(Module(), data)
    assert len(batches) == STEPS
    for batch in batches:
        assert batch["hook ran"]
        # sample number i has the value i, here below 20, and the class i % 10
        numbers = (255 - 255 * batch["image"][:, 0, 0, 0]).round().long()
        assert numbers.max() < 20
        assert numbers.remainder(10).tolist() == batch["label"].tolist()
