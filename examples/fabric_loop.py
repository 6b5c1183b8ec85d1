"""python examples/fabric_loop.py --devices 2: a loop of your own, by Fabric, without a Trainer.

It trains on the digits of quickstart.py, and saves model, optimizer and loader together. Stop it
anywhere and give the command again: it goes on with the next sample, on any number of ranks.
"""

import argparse
from pathlib import Path

import torch
from lightning.fabric import Fabric
from quickstart import DigitsNet, pack_digits
from torch.nn.functional import cross_entropy

from lightning_shards import ShardDataModule, ShardLoader, SplitConfig


def make_data(folder: Path) -> ShardDataModule:
    """The digits: each once an epoch in a new order, and each of `val` once."""
    return ShardDataModule(
        train=SplitConfig(f"{folder}/train/train-*.tar", sampling="shuffled"),
        val=SplitConfig(f"{folder}/val/val-*.tar"),
        fields={"image": "png", "label": "cls"},
        decode={"image": "gray"},
        batch_size=32,
        num_workers=1,
    )


def train(
    fabric: Fabric, data: ShardDataModule, checkpoint: Path, epochs: int, save_every: int = 10
) -> float:
    """Train from where the checkpoint is, if there is one; the accuracy at the end."""
    place = {"rank": fabric.global_rank, "world_size": fabric.world_size}
    with fabric.rank_zero_first(local=True):  # the others find its counts of shards in the cache
        loader, val_loader = (data.loader(split, **place) for split in ("train", "val"))
    model = DigitsNet()
    model, optimizer = fabric.setup(model, model.configure_optimizers())
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    if checkpoint.exists():
        fabric.load(checkpoint, state)
    with loader, val_loader:  # ends their workers
        for epoch in range(loader.epoch, epochs):
            loader.set_epoch(epoch)  # an epoch that was resumed goes on where it was saved
            for step, on_host in enumerate(loader, start=1):
                batch = fabric.to_device(on_host)
                loss = cross_entropy(model(batch["image"]), batch["label"])
                fabric.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                if step % save_every == 0:  # behind the step: what was given counts as trained
                    fabric.save(checkpoint, state)
            fabric.save(checkpoint, state)
            fabric.print(f"epoch {epoch}: loss {loss:.3f}")
        return accuracy(fabric, model, val_loader)


@torch.no_grad()
def accuracy(fabric: Fabric, model: torch.nn.Module, loader: ShardLoader) -> float:
    """The share that the model gets right, each sample counted once over all ranks."""
    model.eval()
    counted = torch.zeros(2, device=fabric.device)
    for on_host in loader:
        batch = fabric.to_device(on_host)
        is_right = model(batch["image"]).argmax(1) == batch["label"]
        weight = batch["__weight__"].float()  # 0 for a sample that only fills up the last step
        counted += torch.stack([(is_right * weight).sum(), weight.sum()])
    right, samples = fabric.all_reduce(counted, reduce_op="sum")
    fabric.print(f"val: {samples:.0f} samples, accuracy {right / samples:.1%}")
    return float(right / samples)


def main() -> None:
    """Pack, train, and count what the model gets right."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--folder", type=Path, default=Path("data/digits"))
    parser.add_argument("--checkpoint", type=Path, default=Path("fabric_loop.ckpt"))
    parser.add_argument("--devices", type=int, default=1, help="ranks, by DDP if more than one")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    pack_digits(options.folder)
    strategy = "ddp" if options.devices > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=options.devices, strategy=strategy)
    fabric.launch()
    fabric.seed_everything(0)
    train(fabric, make_data(options.folder), options.checkpoint, options.epochs)


if __name__ == "__main__":
    main()
