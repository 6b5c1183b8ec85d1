"""The user's own `collate_fn`: the samples that it is given, and the batch that it makes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import numpy as np

from lightning_shards.errors import ShardError, TransformError, leave_out_own_frames
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import (
    RESERVED_KEYS,
    BadSample,
    BatchFormat,
    Layouts,
    LoadedBatch,
    Sample,
    batch_dict,
    digest_of,
    ids_of,
    make_batch,
    only_reserved,
    values_of,
)
from lightning_shards.samples.loaded_torch import as_tensor
from lightning_shards.samples.own_generators import WatchedCollateFn
from lightning_shards.samples.stage_clock import StageClock

CollateFn: TypeAlias = Callable[[list[Sample]], Any]
"""From the samples of a batch to the batch."""

_NAMED = 8
"""Samples of a batch that an error names."""


@dataclass(frozen=True)
class Collation:
    """What the user says about the batches of a split.

    Attributes:
        collate_fn: Makes a batch of a list of samples; None: `samples.collate` does.
        reserved: The reserved entries of a batch; `__weight__` only where the split has weights,
            `__component__` only where it is a mixture.
        component: The component of all samples, where a source of one component of a mixture makes
            batches alone; None for any other source.
    """

    collate_fn: CollateFn | None = None
    reserved: tuple[str, ...] = RESERVED_KEYS
    component: int | None = None

    @property
    def takes_arrays(self) -> bool:
        """Whether it is given decoded pixels as numpy arrays, as without a `collate_fn`."""
        return self.collate_fn is None or getattr(self.collate_fn, "takes_arrays", False) is True

    @property
    def callables(self) -> tuple[tuple[str, object], ...]:
        """The `collate_fn` with its name in errors, if there is one."""
        return () if self.collate_fn is None else (("collate_fn", self.collate_fn),)

    def watched(self) -> "Collation":
        """The same for one batch, with a warning if the `collate_fn` draws random numbers."""
        if self.collate_fn is None or getattr(self.collate_fn, "deterministic", False) is True:
            return self
        return replace(self, collate_fn=WatchedCollateFn(self.collate_fn))

    def begun(
        self,
        samples: Sequence[Sample],
        fields: Sequence[str],
        weights: Sequence[int],
        batch_format: BatchFormat,
        bad: Sequence[BadSample] = (),
        arena: Arena | None = None,
        layouts: Layouts = MappingProxyType({}),
        *,
        components: Sequence[int] = (),
    ) -> LoadedBatch:
        """A batch, of which `finished` makes the user's: the samples themselves for a `collate_fn`.

        Raises:
            SampleError: As of `make_batch`.
            ConfigError: As of `only_reserved`.
        """
        if self.collate_fn is None:
            made = (samples, fields, weights, batch_format, bad, arena, layouts)
            return make_batch(*made, reserved=self.reserved, components=components)
        digest = digest_of(ids_of(samples), weights)
        given = self.given(samples, weights, layouts, components)
        return LoadedBatch(given, digest, tuple(bad))

    def given(
        self,
        samples: Sequence[Sample],
        weights: Sequence[int],
        layouts: Layouts,
        components: Sequence[int] = (),
    ) -> Any:
        """A list of the samples as a `collate_fn` gets them: fields, then the reserved entries.

        Args:
            samples: They may have more entries that begin with two underscores.
            weights: 1 or 0 for each sample; empty for a split that has no `__weight__`.
            layouts: Of the fields that crops made, which gave arrays.
            components: The component of each sample; empty for a split that is no mixture.

        Raises:
            SampleError: A stage dropped the key of one.
        """
        keys = values_of(samples, "__key__")
        if self.component is not None:
            components = [self.component] * len(samples)
        as_tensors = frozenset[str]() if self.takes_arrays else layouts.keys()
        given: list[Sample] = []
        for row, sample in enumerate(samples):
            fields: Sample = {
                name: as_tensor(value) if name in as_tensors and _is_array(value) else value
                for name, value in sample.items()
                if not name.startswith("__")
            }
            fields |= {"__key__": keys[row], "__url__": sample.get("__url__")}
            fields["__id__"] = sample["__id__"]
            if weights:
                fields["__weight__"] = float(weights[row])
            if components:
                fields["__component__"] = components[row]
            given.append(fields)
        return given

    def finished(self, loaded: LoadedBatch, layouts: Layouts = MappingProxyType({})) -> LoadedBatch:
        """The batch as the user gets it.

        Args:
            loaded: As `begun` gave it.
            layouts: As `begun` was given them.

        Raises:
            TransformError: The `collate_fn` raised an error, which is the cause of this one.
            ConfigError: As of `only_reserved`.
        """
        if self.collate_fn is None:
            return loaded
        samples = cast("list[Sample]", loaded.batch)
        keys = [sample["__key__"] for sample in samples]
        ids = ids_of(samples)
        weights = [sample["__weight__"] for sample in samples if "__weight__" in sample]
        components = [s["__component__"] for s in samples if "__component__" in s]
        made = self._called(samples, keys, layouts)
        if not isinstance(made, Mapping):
            return loaded._replace(batch=made)
        batch = dict(cast("Mapping[Any, Any]", made))
        entries = batch_dict(keys, {}, ids, weights, components)
        reserved = only_reserved(entries, {*self.reserved, *batch})
        missing = {name: column for name, column in reserved.items() if name not in batch}
        # texts behind a tensor would make Lightning warn that it cannot tell the batch size
        first = {"__key__": keys} if "__key__" in missing else {}
        return loaded._replace(batch={**first, **batch, **missing})

    def finished_on(self, loaded: LoadedBatch, clock: StageClock, layouts: Layouts) -> LoadedBatch:
        """What `finished` gives, its time told to the clock; an error of it is of no sample."""
        with clock.on("collate"):
            loaded = self.finished(loaded, layouts)
        stages = zip(loaded.stages, clock.take(), strict=True)
        return loaded._replace(stages=tuple(before + since for before, since in stages))

    def _called(self, samples: list[Sample], keys: list[str], layouts: Layouts) -> Any:
        function: Any = self.collate_fn
        try:
            if getattr(function, "takes_layouts", False) is True:  # `PadCollate`
                return function(samples, layouts)
            return function(samples)
        except ShardError:
            raise
        except Exception as error:
            leave_out_own_frames(error)
            name = getattr(function, "__name__", type(function).__name__)
            more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
            raise TransformError(
                f"collate_fn, which is {name}, failed on the batch of samples "
                f"{', '.join(map(repr, keys[:_NAMED]))}{more}: {type(error).__name__}: {error}; it "
                "is called with a list of samples, each a dict of fields"
            ) from error


BUILT_IN_COLLATION = Collation()
"""Without a `collate_fn`, and with all reserved entries."""


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)
