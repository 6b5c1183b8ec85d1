"""The callback that proves at each epoch's end that the ranks were served the planned samples."""

from collections import Counter
from typing import Any, NamedTuple

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.utilities import rank_zero_info

from lightning_shards.callbacks.set_epoch import labels_of, require_own_places
from lightning_shards.collectives import gather
from lightning_shards.errors import DigestError, SampleError, count_of
from lightning_shards.loader import ShardLoader
from lightning_shards.plan.digest import add_digests, digest_ids
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.progress import evaluation_loaders, train_loaders
from lightning_shards.readers.bad_samples import Served
from lightning_shards.readers.source import SourceDescription


class EpochDigest(pl.Callback):
    """Compares the samples served to all ranks with the order, and logs one line per epoch.

    Each worker digests the ids that are really in its batches. At the end of an epoch the digests
    are added over the ranks and compared with the digest of the order's positions since the epoch
    began or was resumed: a sample that was lost, repeated or exchanged changes it. The same check
    runs after a validation, test or prediction, without a line. It costs one collective and 0.2 us
    for each sample of the epoch, shared by the ranks.

    Samples that could not be read under ``on_bad_sample="substitute"`` are counted over all ranks
    here, and the line says how many there were.

    A look at a batch in a hook, as by ``next(iter(trainer.train_dataloader))``, is not counted.

    Draws with replacement by a stream have no order to compare with. There the numbers of steps of
    the ranks are compared, and a line is logged only if samples were bad.

    Raises:
        DigestError: The samples served are not those of the order, or the ranks are not in step.
        SampleError: More samples were bad than `max_bad` allows.
        ConfigError: A loader was made for another rank.
    """

    def __init__(self) -> None:
        self._used: dict[ShardLoader, Served] = {}  # counted of batches that Lightning has taken

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse loaders of another rank."""
        self._used = {}
        require_own_places(trainer, train_loaders(trainer))

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse loaders of another rank."""
        require_own_places(trainer, evaluation_loaders(trainer))

    on_test_start = on_predict_start = on_validation_start

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any,
        batch_idx: int,
    ) -> None:  # fmt: skip
        """Note which iteration the epoch is."""
        self._note(train_loaders(trainer), batch_idx)

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any,
        batch_idx: int, dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Note which iteration of each loader the evaluation is."""
        self._note(evaluation_loaders(trainer)[dataloader_idx:], batch_idx)

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Prove the epoch of the train loaders, before a checkpoint of its end is written."""
        for loader in train_loaders(trainer):
            self._prove(loader, f"epoch {trainer.current_epoch}", is_said=True)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Prove an evaluation, without a line."""
        stage = "prediction" if trainer.predicting else "validation"
        name = "test" if trainer.testing else stage
        loaders = evaluation_loaders(trainer)
        for loader, label in zip(loaders, labels_of(loaders), strict=True):
            self._prove(loader, f"{name} of {label}" if label else name, is_said=False)

    on_test_end = on_predict_end = on_validation_end

    def _note(self, loaders: list[Any], batch_idx: int) -> None:
        """Note what is counted of each loader at its first batch; a later look is counted apart."""
        for loader in loaders:
            served = loader.served if isinstance(loader, ShardLoader) else None
            if served is not None and (batch_idx == 0 or loader not in self._used):
                self._used[loader] = served

    def _prove(self, loader: Any, name: str, *, is_said: bool) -> None:
        """Prove a loader, unless it is a foreign one or gave no batch."""
        served = self._used.pop(loader, None) if isinstance(loader, ShardLoader) else None
        if served is not None:
            loader.served = None
            _prove_served(loader, served, name, is_said=is_said)


class _RankReport(NamedTuple):
    """What one rank was served, the digest of its share of the order, and its bad samples.

    `planned` is the digest of the served samples and the bad ones together.
    """

    rank: int
    begin: Cursor
    samples: int
    steps: int
    planned: int
    expected: int | None
    bad: Counter[str]


def _prove_served(loader: ShardLoader, served: Served, name: str, *, is_said: bool) -> None:
    """Compare over all ranks, and log."""
    description = loader.source.describe()
    gathered: list[_RankReport] = gather(_report_of(loader.place, description, served))
    _require_lockstep(name, gathered)
    reports = {report.rank: report for report in gathered}  # tensor-parallel processes share a rank
    expected = [report.expected for report in reports.values() if report.expected is not None]
    digest = add_digests(*(report.planned for report in reports.values()))
    if expected and add_digests(*expected) != digest:
        raise DigestError(
            f"{name}: the samples served to {count_of(len(reports), 'rank')} are not those of the "
            f"order (digest {digest:016x}, the order's is {add_digests(*expected):016x}); the "
            "model was trained on other samples than planned. Report it with the configuration; "
            "stages or hooks that change `__id__` have this effect too"
        )
    bad = sum((report.bad for report in reports.values()), Counter[str]())
    if bad.total() > (description.max_bad or 0):
        raise SampleError(
            f"{name}: {_count(bad)} could not be read on all ranks together, more than "
            f"max_bad={description.max_bad}; repair the shards, or allow more"
        )
    if bad or (is_said and expected):
        lost = f"; {_count(bad)} could not be read and were replaced" if bad else ""
        proof = f", as the order says (digest {digest:016x})" if expected else ""
        begin = served.begin.samples
        resumed = f" from sample {begin:,} on" if begin else ""
        steps, ranks = count_of(served.steps, "step"), count_of(len(reports), "rank")
        samples = count_of(served.samples - begin, "sample")
        rank_zero_info(f"{name}: {samples} in {steps} of {ranks}{resumed}{proof}{lost}")


def _report_of(place: Place, description: SourceDescription, served: Served) -> _RankReport:
    begin = served.begin
    bad = np.array([(sample.shard, sample.sample) for sample in served.bad], dtype=np.int64)
    return _RankReport(
        rank=place.rank,
        begin=begin,
        samples=served.samples,
        steps=served.steps,
        planned=add_digests(served.digest, digest_ids(bad.reshape(-1, 2))),
        expected=description.expected_digest(begin.epoch, begin.samples, served.samples, place),
        bad=Counter(sample.reason for sample in served.bad),
    )


def _require_lockstep(name: str, reports: list[_RankReport]) -> None:
    for report in reports:
        for what in ("begin", "samples", "steps"):
            first, other = getattr(reports[0], what), getattr(report, what)
            if first != other:
                raise DigestError(
                    f"{name}: the ranks are not in step: rank {reports[0].rank} has "
                    f"{what}={first}, rank {report.rank} has {other}; no rank may leave an epoch "
                    "before the others"
                )


def _count(bad: Counter[str]) -> str:
    """The number of bad samples by reason: '3 samples (2 SampleError, 1 MissingFieldError)'."""
    reasons = ", ".join(f"{number} {reason}" for reason, number in bad.most_common())
    return f"{count_of(bad.total(), 'sample')} ({reasons})"
