"""The real thing: shards on disk, worker processes, another batch size and other workers."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from toy import Snapshots, StopHereError, make_trainer

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig

pytestmark = pytest.mark.filterwarnings(  # lightning/pytorch/utilities/_pytree.py, torch 2.13
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
)


class Seen(pl.LightningModule):
    """Keeps the ids that it was trained on with its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.ids: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.ids += [[self.current_epoch, *each] for each in batch["__id__"].tolist()]
        return self.layer(batch["label"][:, None].float()).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["ids"] = list(self.ids)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.ids = list(checkpoint["ids"])


def fit(folder: Path, urls: list[str], batch_size: int, num_workers: int, **more: Any) -> list[Any]:
    data = ShardDataModule(
        SplitConfig(urls, sampling="shuffled"),
        fields={"label": "cls"},
        batch_size=batch_size,
        num_workers=num_workers,
        loader=LoaderConfig(cache_dir=str(folder / "cache")),
    )
    model = Seen()
    trainer = make_trainer(folder, more.pop("callbacks", ()), max_epochs=2)
    trainer.fit(model, data, **more)
    return model.ids


def test_shuffled_shards_resume_with_another_batch_size_at_the_next_sample(
    pack_shards: Callable[..., list[str]], tmp_path: Path
) -> None:
    urls = pack_shards([5, 9, 6])
    whole = fit(tmp_path, urls, batch_size=1, num_workers=0)
    stop = Snapshots(tmp_path, stop=("on_train_batch_end", 6))  # 8 of 20 in the second epoch
    with pytest.raises(StopHereError):
        fit(tmp_path, urls, 4, 0, callbacks=[stop])
    (checkpoint,) = stop.saved.values()
    resumed = fit(tmp_path, urls, 3, 2, ckpt_path=checkpoint)
    assert resumed == whole
    assert set(Counter(map(tuple, resumed)).values()) == {1}
