"""What the batches look like to the module."""

from typing import Any

import pytest
import torch
from fit_recorder import STEPS, VAL_STEPS, Recorder

from lightning_shards import ShardDataModule, SplitConfig

pytestmark = pytest.mark.usefixtures("held_fork_server")


def negative(images: torch.Tensor) -> torch.Tensor:
    return 255 - images


@pytest.mark.parametrize(
    ("verb", "batch_format"), [("fit", "tuple"), ("test", "dict"), ("predict", "dict")]
)
def test_device_transforms_run_and_then_the_modules_own_hook(
    verb, batch_format, make_data, make_trainer, pack_shards
):
    class Module(Recorder):
        batches: list[Any]

        def on_after_batch_transfer(self, batch, dataloader_idx):
            images, labels = batch.values() if isinstance(batch, dict) else batch
            return {"image": images.float() / 255, "label": labels, "hook ran": True}

        def training_step(self, batch, batch_idx):
            self.batches.append(batch)
            return self._loss(batch)

        def validation_step(self, batch, batch_idx):
            self.batches.append(batch)

        test_step = validation_step

        def predict_step(self, batch, batch_idx):
            self.batches.append(batch)
            return batch["label"].tolist()

    class ImageAndLabel(ShardDataModule):
        """Hands the module's hook nothing but image and label, also of a dict."""

        def on_after_batch_transfer(self, batch, dataloader_idx):
            if isinstance(batch, dict):
                batch = {name: batch[name] for name in ("image", "label")}
            return super().on_after_batch_transfer(batch, dataloader_idx)

    model = Module()
    model.batches = []
    more = SplitConfig(pack_shards([3], "more"))
    data = make_data(
        ImageAndLabel,
        device_transforms={"image": negative},
        batch_format=batch_format,
        test=more,
        predict=more,
    )
    getattr(make_trainer(max_epochs=1), verb)(model, data)
    assert len(model.batches) == {"fit": STEPS + 2 + VAL_STEPS, "test": 2, "predict": 2}[verb]
    for batch in model.batches:
        assert batch["hook ran"]
        # sample number i has the value i, here below 20, and the class i % 10
        numbers = (255 - 255 * batch["image"][:, 0, 0, 0]).round().long()
        assert numbers.max() < 20
        assert numbers.remainder(10).tolist() == batch["label"].tolist()
