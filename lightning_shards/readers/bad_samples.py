"""Bad samples under `on_bad_sample="substitute"`: their substitutes, and how they are counted.

A batch must keep its size, or the ranks would not stay in step. So another sample, with weight 0,
replaces the one that was planned. With `max_bad=None` the first bad sample raises.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import index
from typing import TypeVar

from lightning_shards.errors import DamagedShardError, SampleError
from lightning_shards.plan.place import Cursor
from lightning_shards.samples.collate import BadSample, Sample

_E = TypeVar("_E", bound=Exception)

BAD = (SampleError, DamagedShardError)
"""Errors that one sample can cause: a field is missing, decoding or a transform fails, damage."""

SAMPLES_TRIED = 8
"""Samples tried before a fit if bad ones are allowed. If one of a hundred is bad, all eight are bad
once in 10**16 starts, while a wrong field or transform fails on all of them each time."""

_ADVICE = "if only few samples are bad: on_bad_sample='substitute' with max_bad trains without them"

_MESSAGE_LENGTH = 1000
_NAMED = 3


@dataclass
class Served:
    """The batches of one epoch that this rank has handed out since it began or was resumed.

    Attributes:
        begin: The cursor of the first batch.
        samples: The cursor's samples after the last batch, over all ranks and without repeats.
        steps: Batches handed out.
        digest: Sum of the digests of the batches (`plan.digest`), without repeats and substitutes.
        bad: Samples that could not be read and were replaced by others.
    """

    begin: Cursor
    samples: int
    steps: int = 0
    digest: int = 0
    bad: list[BadSample] = field(default_factory=list[BadSample])


def bad_sample(shard: int, sample: int, error: Exception) -> BadSample:
    """A record of a sample that raised this error."""
    return BadSample(shard, sample, type(error).__name__, str(error)[:_MESSAGE_LENGTH])


def refused(error: _E) -> _E:
    """The error of a bad sample that may not be replaced, with the setting that would allow it.

    That is no remedy for a transform that fails, and that a member is missing says so itself.
    """
    if type(error) in BAD:  # and not one of their kinds
        error.add_note(_ADVICE)
    return error


class StandIn(Sample):
    """A sample that replaces a bad one; a key that marks it could be a key of the data."""


def weights_of(rows: Sequence[Sample], planned: Sequence[int]) -> list[int]:
    """The weights of a batch: 0 for each substitute, else as planned (1 if `planned` is empty)."""
    weights = planned or [1] * len(rows)
    return [
        0 if isinstance(row, StandIn) else weight for row, weight in zip(rows, weights, strict=True)
    ]


def require_budget(bad: Sequence[BadSample], max_bad: int | None, epoch: int) -> None:
    """Check the bad samples that one rank met in an epoch against the budget of the job.

    Raises:
        SampleError: There are more than all ranks together may have; the first ones are named.
    """
    if len(bad) <= (max_bad or 0):
        return
    reasons = Counter(sample.reason for sample in bad).most_common()
    counts = ", ".join(f"{number} {reason}" for reason, number in reasons)
    first = [f"shard {each.shard}, sample {each.sample}: {each.message}" for each in bad[:_NAMED]]
    raise SampleError(
        f"{len(bad)} bad samples on this rank in epoch {epoch} ({counts}), more than "
        f"max_bad={max_bad} of all ranks; repair the shards, or allow more. The first:\n  "
        + "\n  ".join(first)
    )


def first_good(make: Callable[[int], Sample], max_bad: int | None) -> Sample:
    """The first good sample of several tries, to check fields and transforms.

    Args:
        make: Makes the sample of a try, by its number.
        max_bad: The samples that may be bad; None: only one is tried.

    Raises:
        ShardError: All samples are bad; the error is that of the first one, and says how many
            were tried if bad samples are allowed.
    """
    errors: list[Exception] = []
    for attempt in range(1 if max_bad is None else SAMPLES_TRIED):
        try:
            return make(attempt)
        except BAD as error:
            errors.append(error)
    if len(errors) > 1:  # on_bad_sample is 'substitute' already
        notes: list[str] = getattr(errors[0], "__notes__", [])
        errors[0].__notes__ = [note for note in notes if note != _ADVICE]
        errors[0].add_note(
            f"all {len(errors)} samples that were tried before the start are bad, which is no case "
            "for on_bad_sample='substitute'; look at fields, decode and transforms"
        )
    raise errors[0]


@dataclass
class BadSampleLedger:
    """The bad samples of one worker in one epoch of a stream, and the gaps that they leave.

    A bad sample is left out by the stage in which it fails. At the end of the pipeline `fill` fills
    the gap with the good sample before it, or with the next one if there is none before.

    Attributes:
        max_bad: Bad samples that the job may have in an epoch; None: the first one raises.
        epoch: Number of the epoch.
        are_counted: False while repeats are read, because these samples are counted elsewhere.
        found: Bad samples that `take` has not returned yet.
        gaps: Samples that were planned and have no substitute so far.
    """

    max_bad: int | None
    epoch: int = 0
    are_counted: bool = True
    found: list[BadSample] = field(default_factory=list[BadSample])
    gaps: int = 0

    def begin(self, epoch: int) -> None:
        """Begin with the bad samples of another epoch."""
        self.epoch, self.are_counted, self.found, self.gaps = epoch, True, [], 0

    def lose(self, sample: Sample, error: Exception) -> None:
        """Leave out a sample that was planned, or raise its error."""
        shard = number = None
        with suppress(KeyError, TypeError, ValueError):  # a stage dropped or changed the id
            shard, number = map(index, sample["__id__"])
        if shard is None or number is None:
            raise error
        self.lose_planned(shard, range(number, number + 1), error)

    def lose_planned(self, shard: int, samples: Sequence[int], error: Exception) -> None:
        """Leave out these samples, which were planned, or raise the error."""
        self.gaps += len(samples)
        if self.max_bad is None or self.are_counted:
            self.lose_rest(shard, samples, error)

    def lose_rest(self, shard: int, samples: Sequence[int], error: Exception) -> None:
        """Leave out samples of a shard of which none was planned, or raise the error."""
        if self.max_bad is None:
            raise refused(error)
        most = samples[: self.max_bad + 1]  # an index may claim any number
        self.found.extend(bad_sample(shard, sample, error) for sample in most)
        require_budget(self.found, self.max_bad, self.epoch)

    def take(self) -> list[BadSample]:
        """The bad samples since the last call."""
        found, self.found = self.found, []
        return found

    def fill(self, samples: Iterator[Sample], spare: Callable[[], Sample]) -> Generator[Sample]:
        """The samples, with substitutes in the gaps; `spare` makes one if no sample is good."""
        last: Sample | None = None
        for sample in samples:
            yield from self._filled(last or sample)
            last = sample
            yield sample
        if self.gaps:
            yield from self._filled(last or spare())

    def _filled(self, sample: Sample) -> Iterator[Sample]:
        gaps, self.gaps = self.gaps, 0
        return (StandIn(sample) for _ in range(gaps))
