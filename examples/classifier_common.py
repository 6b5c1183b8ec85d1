"""python examples/classifier_common.py: pack the shards that both classifier examples train on.

What `classifier_before.py` and `classifier_after.py` share: data, transforms, model, the run, and
the facts that are counted of it. Their shape is that of `train.py` in
tmbdev-archive/webdataset-lightning (ImageNet; BSD-3-Clause, Copyright 2020 NVIDIA Corporation): an
`ImageClassifier` with SGD, and a data module of hand-written WebDataset pipelines. Here it is
written anew for digits, for webdataset 1 and Lightning 2.
"""

import argparse
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
import torchmetrics
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from webdataset.writer import ShardWriter

NUM_TRAIN, NUM_VAL = 1500, 297
SHARD_SIZES = {"train": 100, "val": 30}
TRAIN_SHARDS, VAL_SHARDS = "train-{000000..000014}.tar", "val-{000000..000009}.tar"
BATCH_SIZE = 32  # per rank


def pack_digits(folder: Path) -> None:
    """Write a PNG, a class and a number for each of scikit-learn's digits, unless they are there.

    The number counts the samples of a split; it is there to see which ones a rank was given.
    """
    if (folder / "val-000009.tar").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    order = torch.randperm(NUM_TRAIN + NUM_VAL, generator=torch.Generator().manual_seed(0)).tolist()
    for split, chosen in {"train": order[:NUM_TRAIN], "val": order[NUM_TRAIN:]}.items():
        pattern = str(folder / f"{split}-%06d.tar")
        with ShardWriter(pattern, maxcount=SHARD_SIZES[split], verbose=0) as shards:
            for number, digit in enumerate(chosen):
                png = io.BytesIO()
                Image.fromarray((digits.images[digit] * 15).astype("uint8")).save(png, "PNG")
                label, index = str(digits.target[digit]), str(number)
                members = {"png": png.getvalue(), "cls": label, "index": index}
                shards.write({"__key__": f"{number:06d}"} | members)


def to_tensor(image: Image.Image) -> torch.Tensor:
    """The transform for validation: float32 of shape (1, 8, 8), from 0 to 1."""
    return torch.from_numpy(np.array(image.convert("L"))).float()[None] / 255


def augment(image: Image.Image) -> torch.Tensor:
    """The transform for training: a random crop of the padded digit, flipped half of the times."""
    padded = nn.functional.pad(to_tensor(image), (1, 1, 1, 1))
    top, left = torch.randint(3, (2,)).tolist()
    crop = padded[:, top : top + 8, left : left + 8]
    return crop.flip(2) if torch.rand(()) < 0.5 else crop  # noqa: PLR2004 half of the times


class ImageClassifier(pl.LightningModule):
    """A small network; its batches are (images, labels, numbers)."""

    def __init__(
        self, learning_rate: float = 0.05, momentum: float = 0.9, weight_decay: float = 1e-4
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
        )  # fmt: skip
        self.val_accuracy = torchmetrics.Accuracy("multiclass", num_classes=10, average="micro")

    def training_step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        images, labels, _ = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def validation_step(self, batch: Sequence[torch.Tensor]) -> None:
        """Count what is right, over all ranks."""
        images, labels, _ = batch
        self.val_accuracy(self.model(images), labels)
        self.log("val_accuracy", self.val_accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(
            self.parameters(),
            lr=self.hparams["learning_rate"],
            momentum=self.hparams["momentum"],
            weight_decay=self.hparams["weight_decay"],
        )


class Facts(pl.Callback):
    """Notes which samples this rank was given in each epoch, stopped and resumed or not."""

    def __init__(self) -> None:
        self.trained: dict[int, list[list[int]]] = defaultdict(list)
        self.validated: dict[int, list[list[int]]] = defaultdict(list)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any,
        batch_idx: int,
    ) -> None:  # fmt: skip
        """Note the numbers of a batch that was trained."""
        self.trained[trainer.current_epoch].append(batch[2].tolist())

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any,
        batch_idx: int, dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Note the numbers of a batch that was validated."""
        self.validated[trainer.current_epoch].append(batch[2].tolist())

    def lines(self) -> list[str]:
        """What each epoch was made of, and all together; the ranks call this together."""
        own = (dict(self.trained), dict(self.validated))
        ranks: list[Any] = [own]
        if torch.distributed.is_initialized():
            ranks = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(ranks, own)
        epochs = sorted(self.trained)
        lines = [
            f"epoch {epoch}: steps of each rank {[len(trained[epoch]) for trained, _ in ranks]}, "
            f"shards {_name_order(ranks, epoch)}; train {_count(ranks, 0, [epoch])}; "
            f"val {_count(ranks, 1, [epoch])}"
            for epoch in epochs
        ]
        train, val = _never(ranks, 0, epochs), _never(ranks, 1, epochs)
        return [*lines, f"in all epochs: train {train} never; val {val} never"]


def _times(ranks: Sequence[Any], split: int, epochs: Sequence[int]) -> Counter[int]:
    """How often all ranks together were given each sample of a split."""
    batches = (batch for rank in ranks for epoch in epochs for batch in rank[split][epoch])
    return Counter(number for batch in batches for number in batch)


def _never(ranks: Sequence[Any], split: int, epochs: Sequence[int]) -> int:
    return (NUM_TRAIN, NUM_VAL)[split] - len(_times(ranks, split, epochs))


def _count(ranks: Sequence[Any], split: int, epochs: Sequence[int]) -> str:
    times = _times(ranks, split, epochs).values()
    once = sum(count == 1 for count in times)
    never = _never(ranks, split, epochs)
    return f"{once} once, {len(times) - once} more than once, {never} never"


def _name_order(ranks: Sequence[Any], epoch: int) -> str:
    """Whether each rank met its shards in the order of epoch 0, as far as it went."""
    orders = [[_shards_met(trained[each]) for each in (0, epoch)] for trained, _ in ranks]
    repeats = all(first[: len(other)] == other for first, other in orders)
    return "as in epoch 0" if epoch and repeats else "in a new order"


def _shards_met(batches: Sequence[Sequence[int]]) -> list[int]:
    shards = (number // SHARD_SIZES["train"] for batch in batches for number in batch)
    return list(dict.fromkeys(shards))


def parse_options(description: str | None) -> argparse.Namespace:
    """The options of both examples."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--folder", type=Path, default=Path("data/classifier"))
    parser.add_argument("--devices", type=int, default=2, help="ranks, by DDP")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--num-workers", type=int, default=1, help="of each rank")
    parser.add_argument("--resampled", action="store_true", help="draw shards with replacement")
    return parser.parse_args()


def train_and_report(
    options: argparse.Namespace,
    make_data: Callable[[argparse.Namespace], pl.LightningDataModule],
    make_callbacks: Callable[[], list[pl.Callback]],
) -> None:
    """Train, stop in the middle of epoch 1, resume, and print what each epoch was made of."""
    pack_digits(options.folder)
    steps = NUM_TRAIN // (BATCH_SIZE * options.devices)
    stop = steps + steps // 2
    saved = options.folder / "checkpoints"
    facts = Facts()

    def fit(resume: Path | None, **limits: int) -> pl.Trainer:
        pl.seed_everything(0, workers=True, verbose=False)  # as a program started anew does
        checkpoint = ModelCheckpoint(
            saved, "{step}", every_n_train_steps=stop, save_top_k=-1, enable_version_counter=False
        )
        trainer = pl.Trainer(
            strategy="ddp", accelerator="cpu", devices=options.devices, **limits,
            num_sanity_val_steps=0, logger=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[facts, checkpoint, *make_callbacks()],
        )  # fmt: skip
        trainer.fit(ImageClassifier(), make_data(options), ckpt_path=resume)
        return trainer

    fit(None, max_steps=stop, max_epochs=-1)
    trainer = fit(saved / f"step={stop}.ckpt", max_epochs=options.epochs)
    trainer.print(f"stopped after step {stop}, in the middle of epoch 1, and resumed")
    for line in facts.lines():
        trainer.print(line)
    trainer.print(f"val accuracy: {trainer.callback_metrics['val_accuracy']:.1%}")


if __name__ == "__main__":
    pack_digits(parse_options(__doc__).folder)
