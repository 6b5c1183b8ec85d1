"""How far a run has come in each component of its mixture: arithmetic on the cursor."""

from dataclasses import dataclass
from typing import Self

from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.mixtures.slots import MixtureSlots
from lightning_shards.readers.source import Source


@dataclass(frozen=True, slots=True)
class MixtureProgress:
    """The samples and the passes of each component before a cursor.

    Attributes:
        slots: Where in the sequence each component stands.
        pass_samples: Samples of each component, in the order of `slots.names`; None if unknown.
    """

    slots: MixtureSlots
    pass_samples: tuple[int | None, ...]

    @classmethod
    def of(cls, source: Source) -> Self | None:
        """That of the mixture which a source reads.

        None if it is no mixture, or if all epochs repeat the first one, so that a cursor says
        nothing about the run.
        """
        description = source.describe()
        if description.mixture is None or description.index is None or source.epochs.pinned:
            return None
        parts = description.index.components
        return cls(description.mixture.slots, tuple(part.known_samples for part in parts))

    def metrics(self, cursor: Cursor) -> dict[str, float]:
        """The figures before a cursor, by the names under which loggers show them.

        Samples at the end of an epoch that no step serves are counted once the epoch is over: the
        sequence of the mixture goes on behind them.
        """
        run_position = cursor.epoch * self.slots.epoch_samples + cursor.samples
        metrics: dict[str, float] = {}
        of_components = zip(self.slots.names, self.slots.before(run_position).tolist(), strict=True)
        for (name, samples), of_pass in zip(of_components, self.pass_samples, strict=True):
            metrics[f"data/component/{name}/samples"] = float(samples)
            if of_pass:
                metrics[f"data/component/{name}/passes"] = samples / of_pass
        return metrics
