"""Where Lightning is: the only reader of its counters, some of which are semi-private.

The counters are read when the first batch of an iteration is asked for. By then Lightning has
restored and reset them; hooks run too early or, on a resume, not at all.
"""

from typing import Any, Protocol

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import RunningStage, TrainerFn

from lightning_shards.pipeline.source import Epochs
from lightning_shards.plan.cursor import Cursor
from lightning_shards.topology import Place


class Loader(Protocol):
    """What is asked of a loader here."""

    @property
    def epochs(self) -> Epochs:
        """How its samples are cut into epochs."""
        ...

    @property
    def place(self) -> Place:
        """Its rank and world size."""
        ...

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        ...


class TrainProgress:
    """The position of `trainer.fit` in its train loader."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer: Any = trainer  # Lightning types its counters too narrowly

    def begin(self, loader: Loader) -> tuple[Cursor, int | None]:
        """The first sample that is not trained yet, and the steps that the trainer wants."""
        fit_loop = self._trainer.fit_loop
        limit = _as_limit(fit_loop.max_batches)
        epoch, batches = self._position(limit)
        return loader.epochs.cursor_after(loader.place.world_size, epoch, batches), limit

    def trained(self, loader: Loader) -> Cursor:
        """Batches whose step was taken; counted by Lightning, not by what was fetched."""
        fit_loop = self._trainer.fit_loop
        progress = fit_loop.epoch_progress.current
        batches = fit_loop.epoch_loop.batch_progress.current.processed
        if progress.ready == progress.processed:  # between two epochs
            batches = 0
        if batches >= min(len(loader), fit_loop.max_batches):
            return Cursor(progress.processed + 1)
        return loader.epochs.cursor_after(loader.place.world_size, progress.processed, batches)

    def _position(self, limit: int | None) -> tuple[int, int]:
        """Epoch, and batches of it that are trained.

        `processed` is right in checkpoints from the end of a batch, of a validation and from an
        exception alike; `ready` and `completed` are not.
        """
        fit_loop = self._trainer.fit_loop
        progress = fit_loop.epoch_progress.current
        batches = fit_loop.epoch_loop.batch_progress.current.processed
        if not fit_loop.restarting or progress.ready == progress.processed:
            return progress.processed, 0
        if limit is not None and batches >= limit:
            return progress.processed + 1, 0
        return progress.processed, batches


class EvaluationProgress:
    """The position of a validation, test or prediction: always at the beginning."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer: Any = trainer  # Lightning types its counters too narrowly

    def begin(self, loader: Loader) -> tuple[Cursor, int | None]:
        """The beginning, and the steps that the trainer wants of this loader."""
        loop = _evaluation_loop(self._trainer)
        loaders = loop._combined_loader.flattened  # noqa: SLF001 Lightning names no other way
        limits = [
            limit for each, limit in zip(loaders, loop.max_batches, strict=True) if each is loader
        ]
        return Cursor(), _as_limit(limits[0]) if limits else None

    def trained(self, loader: Loader) -> Cursor:
        """Nothing: evaluation keeps no progress."""
        return Cursor()


def _evaluation_loop(trainer: Any) -> Any:
    stage = trainer.state.stage
    if stage is RunningStage.TESTING:
        return trainer.test_loop
    if stage is RunningStage.PREDICTING:
        return trainer.predict_loop
    if trainer.state.fn == TrainerFn.FITTING:
        return trainer.fit_loop.epoch_loop.val_loop
    return trainer.validate_loop


def _as_limit(batches: float) -> int | None:
    return None if batches == float("inf") else int(batches)


def train_loaders(trainer: Any) -> list[Any]:
    """The train loaders of a running fit, ours and foreign, in the order of their container."""
    combined = trainer.fit_loop._combined_loader  # noqa: SLF001 Lightning names no other way
    return [] if combined is None else list(combined.flattened)


def restart_train_loaders(trainer: Any) -> None:
    """Make the train iterators anew: those of the first epoch are older than any hook."""
    trainer.fit_loop._combined_loader.reset()  # noqa: SLF001 ends workers that know the old epoch
    iter(trainer.fit_loop._data_fetcher)  # noqa: SLF001 what fit_loop.setup_data did


def should_log(trainer: Any) -> bool:
    """Whether the loggers are due at this step."""
    return bool(trainer._logger_connector.should_update_logs)  # noqa: SLF001 as Lightning's monitors


def logger_step(trainer: Any) -> int:
    """The step that Lightning gives its loggers as their x axis."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)  # noqa: SLF001 as above
