"""The run of both classifiers: stopped in the middle of epoch 1, resumed, and counted."""

import argparse
from collections.abc import Callable
from pathlib import Path

import lightning.pytorch as pl
from classifier.digits import NUM_TRAIN, pack_digits
from classifier.ledger import SampleLedger
from classifier.model import ImageClassifier
from lightning.pytorch.callbacks import ModelCheckpoint

BATCH_SIZE = 32  # per rank


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
    ledger = SampleLedger()

    def fit(resume: Path | None, **limits: int) -> pl.Trainer:
        pl.seed_everything(0, workers=True, verbose=False)  # as a program started anew does
        checkpoint = ModelCheckpoint(
            saved, "{step}", every_n_train_steps=stop, save_top_k=-1, enable_version_counter=False
        )
        trainer = pl.Trainer(
            strategy="ddp", accelerator="cpu", devices=options.devices, **limits,
            num_sanity_val_steps=0, logger=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[ledger, checkpoint, *make_callbacks()],
        )  # fmt: skip
        trainer.fit(ImageClassifier(), make_data(options), ckpt_path=resume)
        return trainer

    fit(None, max_steps=stop, max_epochs=-1)
    trainer = fit(saved / f"step={stop}.ckpt", max_epochs=options.epochs)
    trainer.print(f"stopped after step {stop}, in the middle of epoch 1, and resumed")
    for line in ledger.lines():
        trainer.print(line)
    trainer.print(f"val accuracy: {trainer.callback_metrics['val_accuracy']:.1%}")
