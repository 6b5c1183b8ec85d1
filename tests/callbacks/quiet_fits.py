"""A logger that keeps what it is given, with the step of each."""

from typing import Any

from lightning.pytorch.loggers.logger import Logger


class KeptMetrics(Logger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[int | None, dict[str, float]]] = []

    @property
    def name(self) -> str:
        return "kept"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, *arguments: Any, **options: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.given.append((step, metrics))

    def steps(self, name: str) -> list[int | None]:
        return [step for step, metrics in self.given if name in metrics]

    def values(self, name: str) -> list[float]:
        return [metrics[name] for _, metrics in self.given if name in metrics]

    def by_step(self, word: str) -> dict[int | None, dict[str, float]]:
        """The figures whose names hold a word, by step."""
        told = {
            step: {name: value for name, value in metrics.items() if word in name}
            for step, metrics in self.given
        }
        return {step: metrics for step, metrics in told.items() if metrics}
