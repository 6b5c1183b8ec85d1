"""The loader: a sized iterable that cuts one endless stream into epochs and keeps the cursor.

It is not a DataLoader, because Lightning calls `iter()` up to three times an epoch, the first time
before it sets the epoch. So `__iter__` is a lazy generator, which looks up where to begin at the
first `next()`. Lightning also never exhausts a loader that has a length, so the cursor moves on
**before** a batch is handed out, and no code that matters comes after the last `yield`.
"""

import copy
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol, Self

import torch.distributed

from lightning_shards.errors import ConfigError, ShardError, errors_about, require_at_least
from lightning_shards.plan.epoch import EpochPlan, EpochSchedule
from lightning_shards.plan.place import WAYS_TO_A_PLACE, Cursor, Place
from lightning_shards.readers.bad_samples import Served, require_budget
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import Batch, LoadedBatch
from lightning_shards.samples.stage_clock import STAGES, LoaderTimes
from lightning_shards.samples.tensors import with_tensors
from lightning_shards.state import (
    State,
    read_cursor,
    require_not_before,
    require_not_within,
    require_resumable,
    require_same,
    require_state,
)
from lightning_shards.workers.pool import OpenStream, Pool

STATE_VERSION = 1


class Progress(Protocol):
    """Tells a loader which cursor to begin at, as a trainer's progress does."""

    def begin(self, loader: "ShardLoader") -> tuple[Cursor, int | None] | None:
        """The cursor to begin at and the limit of steps, at the first `next()`, or None."""
        ...

    def trained(self, loader: "ShardLoader") -> Cursor:
        """The cursor of the whole job, for a checkpoint."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """A context for the wait for a batch, which ends it if the trainer was told to end."""
        ...


class ShardLoader:
    """Batches of one split for one rank, the same number on every rank.

    It has one rule: if the open stream is at the wanted (epoch, samples, limit), it goes on;
    otherwise a stream is started there. So workers make the next epoch while the model validates.

    Without a Trainer a batch counts as trained when it is handed out. An iteration starts at the
    beginning of `epoch`, except right after `load_state_dict`. Finishing an epoch increases
    `epoch`; a `break` does not.

    Args:
        source: Makes the batches.
        pool: Runs the source in its workers.
        place: The rank and the world size. None stands for a single process, and is refused at the
            first batch if this process is one of several.
        name: Name of its split or evaluation set.
        progress: A trainer's progress; None for a plain loop.

    Attributes:
        source: The source that makes the batches; it is frozen.
        keeps_workers: Whether workers go on with the next epoch, as they do unless this is changed;
            otherwise they end with an epoch's last batch.
    """

    def __init__(
        self,
        source: Source,
        pool: Pool,
        place: Place | None = None,
        *,
        name: str = "",
        progress: Progress | None = None,
    ) -> None:
        self.name, self.keeps_workers = name, True
        self.epoch, self.place = 0, place or Place()
        self._is_placed = place is not None
        self.pool = pool
        self.times = LoaderTimes()
        self.served: Served | None = None
        self.source, self.identity = source, source.identity()
        self.progress = progress
        self._loaded: State = {}
        self._resumed: Cursor | None = None
        self._trained = Cursor()
        self._open: OpenStream | None = None
        self._is_first, self._is_led, self._iteration = True, False, 0

    @property
    def epochs(self) -> EpochSchedule:
        """The schedule by which samples are cut into epochs."""
        return self.source.epochs

    @property
    def plan(self) -> EpochPlan:
        """The plan of a whole epoch; the limit of `with_epoch` does not change it."""
        return self.epochs.plan(self.place.world_size)

    def __len__(self) -> int:
        """Steps of a whole epoch, even while one is resumed in the middle."""
        return self.epochs.steps(self.place.world_size)

    def __repr__(self) -> str:
        """The numbers of an epoch and who makes its batches; nothing is opened for it."""
        rank = f" of rank {self.place.rank} of {self.place.world_size}" if self._is_placed else ""
        epoch = self.source.describe().epoch_text(self.plan, len(self))
        return f"ShardLoader{rank}: {epoch}, made by {self.pool.describe().workers}"

    def with_epoch(self, steps: int) -> "ShardLoader":
        """A new loader whose epochs have `steps` steps on every rank.

        Raises:
            ConfigError: `steps` is not a whole number of at least 1, or more than the plan has.
        """
        planned, steps = self.plan.steps, require_at_least("steps", steps, 1)
        if steps > planned:
            raise ConfigError(
                f"an epoch of {steps} steps cannot be cut from a plan of {planned}; give 1 to "
                f"{planned}, or a larger dataset_size under sampling='resampled'"
            )
        limit = None if steps == planned else steps
        return self._copy(self.source.with_epochs(self.epochs.with_limit(limit)))

    def with_length(self, steps: int) -> "ShardLoader":
        """A new loader that reports `steps` as its length, which must be the true number.

        Raises:
            ConfigError: An epoch has another number of steps. With one too many Lightning would
                skip validation silently, and with one too few it would cut the epoch.
        """
        if steps != len(self):
            raise ConfigError(
                f"a length of {steps} is not what an epoch gives, which is {len(self)} steps; "
                f"call with_epoch({steps}) first"
            )
        return self._copy(self.source)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with this epoch, except in evaluation or under a Trainer.

        Right after `load_state_dict` an iteration of an epoch before that of the state is refused.

        Raises:
            ConfigError: It is not a whole number from 0 to 2**63 - 1.
        """
        if self.epochs.pinned:
            return
        epoch = require_at_least("epoch", epoch, 0)
        is_kept = self._resumed is not None and epoch <= self._resumed.epoch
        if epoch != self.epoch and not is_kept:
            self._resumed, self._trained = None, Cursor(epoch)
        self.epoch = epoch

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """What stands for a batch sampler: by its `sampler` Lightning calls `set_epoch`.

        So a loader that was given to a Trainer by hand goes on with the next epoch where the
        trainer cuts epochs, as by `limit_train_batches`. Only a Trainer calls it so.
        """
        return SimpleNamespace(sampler=SimpleNamespace(set_epoch=self._set_epoch_of_trainer))

    def _set_epoch_of_trainer(self, epoch: int) -> None:
        if self.progress is None and self._resumed and self._trained != Cursor():
            require_not_within(epoch, self._resumed)
            ways_out = "set it back to resume, or give the shards to the trainer as datamodule="
            require_same(self.shape, self._loaded, ways_out)
        self.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        """The batches of one epoch; nothing starts before the first `next()`.

        Raises:
            ConfigError: It has no place among several ranks.
            StateError: The epoch that was set is before that of the state that was loaded.
        """
        self._require_place()
        cursor, limit = self._begin()
        self._iteration += 1
        iteration = self._iteration
        epochs = self.epochs
        if limit is not None:
            epochs = epochs.with_limit(min(limit, epochs.limit or limit))
        plan = epochs.plan(self.place.world_size, cursor.samples)
        last = epochs.steps(self.place.world_size, cursor.samples) - 1
        self._stand_at(cursor, epochs)
        served = self.served = Served(cursor, cursor.samples)
        for step in range(last + 1):
            if iteration != self._iteration:
                raise ShardError(
                    "two iterations of one loader ran at the same time, perhaps by "
                    "next(iter(loader)) in the middle of an epoch; for a look at some batches make "
                    "a second loader: data.loader(split, rank=rank, world_size=world_size)"
                )
            after = Cursor(cursor.epoch, plan.trained(step + 1))
            following = epochs.next_epoch(cursor) if step == last else after
            loaded = self._next_batch(following, plan.size(step, self.place.rank), served)
            if step == last and not self.keeps_workers:
                self.close()
            served.samples, served.steps = after.samples, served.steps + 1
            served.digest += loaded.digest
            if not self._is_led:
                self.epoch, self._trained = following.epoch, following
            self.times.handed_at = time.perf_counter()
            yield with_tensors(loaded.batch)

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse an index, which torch's DataLoader gives to what it takes for a dataset.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "a ShardLoader gives whole batches, made by workers of its own: iterate over it, or "
            "give it to the trainer, without a torch DataLoader around it; for a DataLoader of "
            "your own take ShardDataset, which has one sample at each index"
        )

    @property
    def shape(self) -> State:
        """The values that give a number of batches its meaning."""
        return {"epoch_samples": self.epochs.samples, "global_batch": self.plan.global_batch}

    @property
    def facts(self) -> State:
        """The values that must be equal on all ranks."""
        return {
            "the steps of an epoch": len(self),
            "the batch size": self.epochs.batch_size,
            "the world size": self.place.world_size,
            **self.identity,
        }

    def state_dict(self) -> State:
        """The cursor and the identity as plain values, equal on all ranks.

        These are `version`; `epoch` and `samples`, how far all ranks together have trained;
        `epoch_samples` and `global_batch`; and by name all that the samples depend on, as the
        source's `identity` says: seed, sampling and its settings, and a fingerprint of the shards.
        """
        trained = self.progress.trained(self) if self.progress else self._trained
        return {
            "version": STATE_VERSION,
            **self.source.describe().state_at(trained),
            **self.shape,
            **self.identity,
        }

    def load_state_dict(self, state: State) -> None:
        """Begin the next iteration at the cursor of the state; under a Trainer, check it alone.

        A Trainer's own counters say where the fit goes on.

        Raises:
            StateError: The state belongs to other shards, another seed or another version, or is
                damaged; or batches would not tell the repeats of the rest of its epoch.
        """
        self._loaded, self._trained = self.read_state(state, "the train loader")
        self._resumed = self.epochs.with_a_step(self._trained, self.place.world_size)
        self.epoch = self._resumed.epoch

    def read_state(self, state: object, whose: str) -> tuple[State, Cursor]:
        """A state that was saved by a loader of the same samples, and its cursor.

        Raises:
            StateError: See `load_state_dict`.
        """
        state = require_state(state, whose)
        description = self.source.describe()
        require_resumable({"version": STATE_VERSION, **self.identity}, state, description)
        require_same({"epoch_samples": self.epochs.samples}, state)
        return state, read_cursor(state, description, self.epochs, self.place.world_size)

    def __enter__(self) -> Self:
        """A context for a plain loop; the workers end with it."""
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; the next iteration starts them again."""
        if self._open is not None:
            opened, self._open = self._open, None
            opened.stream.close()

    @property
    def _iterator(self) -> None:
        """Lightning sets this to None to end the workers of a loader."""
        return

    @_iterator.setter
    def _iterator(self, value: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open stream, because a copy in another process starts its own."""
        return self.__dict__ | {"_open": None}

    def _copy(self, source: Source) -> "ShardLoader":
        loader = copy.copy(self)  # uses __getstate__, so the open stream is left out
        loader.times, loader.source = LoaderTimes(), source
        return loader

    def _require_place(self) -> None:
        """Refuse to guess a rank, without a collective, because one process may iterate alone."""
        group = torch.distributed
        if self._is_placed or not (group.is_available() and group.is_initialized()):
            return
        if group.get_world_size() > 1:
            raise ConfigError(
                f"this is one of {group.get_world_size()} processes, and its loader was made "
                f"without rank and world_size: all would get the same batches; {WAYS_TO_A_PLACE}"
            )

    def _begin(self) -> tuple[Cursor, int | None]:
        wanted = self.progress.begin(self) if self.progress else None
        if self.progress is None and not self.epochs.pinned:
            require_not_before(self.epoch, self._resumed)
        resumed, self._resumed = self._resumed, None
        self._is_led = wanted is not None
        if wanted is not None:
            cursor, limit = wanted
            return (Cursor(0, cursor.samples) if self.epochs.pinned else cursor), limit
        if resumed is not None:
            return self.epochs.with_a_step(resumed, self.place.world_size), None
        return Cursor(0 if self.epochs.pinned else self.epoch), None

    def _stand_at(self, cursor: Cursor, epochs: EpochSchedule) -> None:
        opened = self._open
        if opened and (opened.cursor, opened.limit) == (cursor, epochs.limit):
            return
        self.close()
        begin = time.perf_counter()
        stream = self.pool.start(self.source.with_epochs(epochs), self.place, cursor)
        self.times.start_s += time.perf_counter() - begin
        self._open, self._is_first = OpenStream(stream, cursor, epochs.limit), True

    def _next_batch(self, following: Cursor, samples: int, served: Served) -> LoadedBatch:
        if self._open is None:
            raise ShardError(
                "this loader was closed while it was iterated, by hand or because its data module "
                "was asked for one of other settings; change settings between two epochs"
            )
        begin = time.perf_counter()
        try:
            with self.progress.waiting() if self.progress else nullcontext():
                loaded = next(self._open.stream)
            if loaded.bad:
                served.bad.extend(loaded.bad)
                require_budget(served.bad, self.source.describe().max_bad, served.begin.epoch)
        except BaseException:
            self.close()
            with errors_about(self.name if "/" in self.name else "", ShardError):
                raise
        self._count(loaded, samples, time.perf_counter() - begin)
        self._open = OpenStream(self._open.stream, following, self._open.limit)
        return loaded

    def _count(self, loaded: LoadedBatch, samples: int, seconds: float) -> None:
        times = self.times
        times.batches, times.samples = times.batches + 1, times.samples + samples
        times.produce_s += loaded.seconds
        for stage, spent_s in zip(STAGES, loaded.stages, strict=False):
            if spent_s:  # most stages take no time
                times.stages[stage] += spent_s
        if loaded.fetched is not None:
            times.fetched = times.fetched.plus(loaded.fetched)
        if self._is_first:
            times.start_s += seconds
            self._is_first = False
        else:
            times.wait_s += seconds
