"""Which samples the ranks were given in each epoch, and how often."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from classifier.digits import NUM_TRAIN, NUM_VAL, SHARD_SIZES


class SampleLedger(pl.Callback):
    """Notes the numbers of each batch, over a stop and a resume too."""

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
