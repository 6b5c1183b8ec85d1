"""The map-style dataset: samples by number, for torch's own DataLoader and samplers.

The sampler decides which samples a rank gets, and how many: `DistributedSampler` repeats some so
that all ranks get equally many. `ShardDataModule` plans both exactly, and resumes at the sample.
"""

import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import index as as_index
from typing import Any, cast

import torch
from torch.utils.data import Dataset

from lightning_shards.build.found_shards import find_shards
from lightning_shards.build.sources import make_source
from lightning_shards.config.module import DataConfig, LoaderConfig
from lightning_shards.config.splits import SplitConfig
from lightning_shards.errors import require_at_least
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.open_shards import OpenShards, read_sample
from lightning_shards.readers.recipe import Recipe
from lightning_shards.samples.fields import GivenClasses
from lightning_shards.samples.generators import SampleSeeds, preserved_globals
from lightning_shards.samples.transforms import SampleTransform, SampleTransforms, Transform

_OF_SAMPLES = (
    *("fields", "defaults", "decode", "classes", "transforms", "sample_transforms"),
    *("seed", "allow_unsafe"),
)
"""Settings that are those of a data module."""


class ShardDataset(Dataset[dict[str, Any]]):
    """The samples of tar shards by number, in file order.

    A sample is a dict of its fields, `__key__` and `__id__` (int64, shape (2,): the shard, and the
    sample in it). Shards are listed and counted on first use; each process opens them for itself.

    Args:
        urls: Paths or URLs with braces, local wildcards, ``::`` between several; or a list. Remote
            shards need counts and member tables beside them.
        fields: Sample key to member suffixes, the first that a sample has; with a ``?`` after them
            samples may have none.
        decode: Sample key to decoder: its name, or a callable from bytes to a value. Default: by
            suffix.
        classes: Sample key to the names of classes, in the order of their numbers, or to their
            numbers by name, for the decoder ``class``. Default: ``classes.json`` beside the shards.
        transforms: Sample key to callable; one with a parameter ``rng`` gets a
            ``numpy.random.Generator`` of its own for each (seed, epoch, number of the sample).
        defaults: Sample key to the value of samples that lack an optional field (``cls?``), instead
            of None.
        sample_transforms: Callables from a dict of fields to a dict of fields, applied one after
            the other before `transforms`.
        join: Sample key to a table whose column becomes a field, as in ``SplitConfig``.
        seed: Key of the randomness of transforms.
        allow_unsafe: Decoders that can run code and are allowed: ``pickle``, ``pth``.
        cache_dir: Folder of counts and member tables. Default: ~/.cache/lightning_shards.
        storage_options: How the stores of remote shards are reached, by scheme, as in
            ``LoaderConfig``. No secrets.

    Raises:
        ConfigError: The fields cannot be taken from any shard, or a transform cannot be called.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        fields: Mapping[str, str],
        decode: Mapping[str, Any] | None = None,
        classes: Mapping[str, GivenClasses] | None = None,
        transforms: Mapping[str, Transform] | None = None,
        sample_transforms: Sequence[SampleTransform] | None = None,
        defaults: Mapping[str, Any] | None = None,
        join: Mapping[str, Any] | None = None,
        seed: int = 0,
        allow_unsafe: Sequence[str] | None = None,
        cache_dir: str | None = None,
        storage_options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        given: dict[str, Any] = locals()
        split = SplitConfig(given["urls"], "sequential", reader="indexed", join=given["join"])
        stores: dict[str, Any] = given["storage_options"] or {}
        loader = LoaderConfig(cache_dir=cache_dir, storage_options=stores)
        of_samples = {name: given[name] for name in _OF_SAMPLES}
        self._data = DataConfig(split, batch_size=1, num_workers=0, loader=loader, **of_samples)
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that keys the transforms; workers that are running keep the old one.

        Raises:
            ConfigError: It is not a whole number from 0 to 2**63 - 1.
        """
        self._epoch = require_at_least("epoch", epoch, 0)

    def __len__(self) -> int:
        return self._source.order.samples

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The samples with these numbers; a DataLoader asks for a whole batch at once.

        Raises:
            IndexError: There is no such sample; negative numbers count from the end.
            ShardError: A shard has changed or is damaged, or a sample cannot be made.
        """
        positions = list(map(self._position, numbers))
        transforms = self._recipe.keyed(SampleSeeds(self._data.seed, self._epoch))
        with preserved_globals(are_drawn=transforms.draws_from_globals):
            return [self._sample(position, transforms) for position in positions]

    def _position(self, number: int) -> int:
        number, size = as_index(number), len(self)
        if not -size <= number < size:
            raise IndexError(f"there is no sample {number} in a data set of {size}")
        return number % size

    def _sample(self, position: int, transforms: SampleTransforms) -> dict[str, Any]:
        (sample_id,) = self._source.order.at(0, position, position + 1).tolist()  # in file order
        recipe = self._recipe
        sample = transforms.apply(read_sample(self._shards, recipe.fields, *sample_id), position)
        fields = {name: sample[name] for name in recipe.batch_names([sample], "dict")}
        return fields | {
            "__key__": sample["__key__"],
            "__id__": torch.tensor(sample["__id__"], device="cpu"),
        }

    @cached_property
    def _source(self) -> IndexedSource:
        source = make_source(self._data, "train", find_shards(self._data, "train"))
        return cast("IndexedSource", source)

    @cached_property
    def _recipe(self) -> Recipe:
        return self._source.recipes[0].with_arrays(plain=False)

    @cached_property
    def _shards(self) -> OpenShards:
        source = self._source
        shards = OpenShards(
            source.index, source.cache, storages=source.storages, joined=source.joined
        )
        weakref.finalize(self, shards.__exit__)
        return shards

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open shards, because another process opens its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_shards"}
