"""python examples/synthetic_source.py: a source that makes its batches up, to time a model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

import lightning_shards as ls
from lightning_shards.workers.inline import InlinePool


@dataclass(frozen=True)
class Waves:
    """Images of waves: number i of epoch e is the same on any rank and worker."""

    epochs: ls.EpochSchedule
    seed: int = 0

    def batches(
        self, place: ls.Place, cursor: ls.Cursor, arena: object = None
    ) -> Iterator[ls.LoadedBatch]:
        """The batches of one worker; the schedule says which steps are its own."""
        for part in self.epochs.worker_epochs(place, cursor):
            for step in part.own_steps():
                numbers = torch.arange(*part.plan.rank_span(step, place.rank))
                waves = torch.outer(numbers + 1.0, torch.arange(192.0)) + part.epoch + self.seed
                image = torch.sin(waves).reshape(-1, 3, 8, 8)
                yield ls.LoadedBatch({"image": image, "label": numbers % 10})

    def first_sample(self, place: ls.Place) -> ls.LoadedBatch:
        """A batch of one sample; nothing is kept of it."""
        schedule = ls.EpochSchedule(place.world_size, 1, "drop")
        return next(self.with_epochs(schedule).batches(place, ls.Cursor()))

    def with_epochs(self, epochs: ls.EpochSchedule) -> "Waves":
        """The same samples, cut into other epochs."""
        return replace(self, epochs=epochs)

    def identity(self) -> dict[str, int | str]:
        """A checkpoint of another seed is refused."""
        return {"reader": "waves", "seed": self.seed}

    def describe(self) -> ls.SourceDescription:
        """For logs and tools; it knows no order, since there are no sample ids."""
        return ls.SourceDescription(reader="waves", sampling="sequential")

    def prepare(self) -> None:
        """Nothing: no shard."""

    def replay(self, *_: object) -> list:
        """Refuse: there is nothing to tell."""
        raise ls.ConfigError("waves have no keys to be traced")


if __name__ == "__main__":
    loader = ls.ShardLoader(Waves(ls.EpochSchedule(100, 8, "drop")), InlinePool())
    print(f"{len(loader)} steps, the last one of labels {list(loader)[-1]['label'].tolist()}")
