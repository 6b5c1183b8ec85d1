"""`device_transforms`: before the hook of the module, by the fields that a batch has."""

from typing import Any

import pytest
import torch
from fit_recorder import STEPS, TrainsOnly
from lightning.pytorch.utilities import CombinedLoader

from lightning_shards import ShardDataModule
from lightning_shards.errors import ConfigError
from tests.mixed_shards import mix_of, module_of

pytestmark = pytest.mark.usefixtures("held_fork_server")


def marked(values: torch.Tensor) -> torch.Tensor:
    return -1 - values.int()


class Keeping(TrainsOnly):
    """Keeps the batches that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append(batch)
        return self.layer(torch.ones(1, 16)).sum()


@pytest.mark.parametrize("batch_format", ["tuple", "dict"])
def test_device_transforms_run_and_then_the_modules_own_hook(batch_format, make_data, make_trainer):
    class Module(Keeping):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            images, labels = batch.values() if isinstance(batch, dict) else batch
            return {"image": images.float() / 255, "label": labels}

    model, options = Module(), {"batch_keys": []} if batch_format == "dict" else {}
    data = make_data(
        val=None, device_transforms={"image": marked}, batch_format=batch_format, **options
    )
    make_trainer(max_epochs=1).fit(model, data)
    assert len(model.seen) == STEPS
    for batch in model.seen:
        # sample number i has the value i and the class i % 10
        numbers = (-1 - 255 * batch["image"][:, 0, 0, 0]).round().long()
        assert numbers.remainder(10).tolist() == batch["label"].tolist()


def test_a_batch_that_combines_those_of_several_loaders_is_refused(make_data, make_trainer):
    class Combined(ShardDataModule):
        def train_dataloader(self):
            loaders = [super().train_dataloader(), self.loader("train")]
            return CombinedLoader(loaders, "min_size")

    data = make_data(Combined, val=None, device_transforms={"label": marked})
    message = r"combines those of \['ShardLoader', 'ShardLoader'\]; leave device_"
    with pytest.raises(ConfigError, match=message):
        make_trainer(max_epochs=1).fit(Keeping(), data)


@pytest.mark.parametrize(
    ("names", "batch_keys"), [(("web", "more"), None), (("more", "web"), ["__key__"])], ids=str
)
def test_device_transforms_go_by_the_fields_that_a_batch_has(
    names, batch_keys, make_trainer, tmp_path
):
    """Which batches lack a field is no surprise, whichever component comes first in the mix."""
    more = {"fields": {"label": "cls", "mask": "png"}, "decode": {"mask": "gray"}}  # and no image
    split = {"unit": 8, "round": 6, "dataset_size": 96}  # each batch is of one component
    transforms = dict.fromkeys(("label", "image", "mask"), marked)
    data = module_of(
        tmp_path,
        mix_of(tmp_path / "shards", names, more=more),
        split,
        device_transforms=transforms,
        batch_keys=batch_keys,
    )
    model, kinds = Keeping(), {"web": 0, "more": 0}
    make_trainer(max_epochs=1).fit(model, data)
    for batch in model.seen:
        [name] = {key[:-3] for key in batch["__key__"]}
        numbers = [int(key[-3:]) for key in batch["__key__"]]
        pixels = batch["image" if name == "web" else "mask"]
        assert ("image" in batch, "mask" in batch) == (name == "web", name == "more")
        assert batch["label"].tolist() == [-1 - number for number in numbers]
        assert pixels[:, 0, 0, 0].tolist() == batch["label"].tolist()
        kinds[name] += 1
    assert kinds == {"web": 10, "more": 2}
