"""The settings of one split; the layers below the configuration take plain arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast

from lightning_shards.config.checks import require_at_least, require_choice
from lightning_shards.config.parsing import (
    build,
    load_callable,
    load_callable_list,
    load_callables,
    load_decoders,
)
from lightning_shards.errors import ConfigError
from lightning_shards.shards.urls import redact_pattern

Split = Literal["train", "val", "test", "predict"]


@dataclass(frozen=True)
class SplitConfig:
    """What to read for one split, and how it is cut into steps.

    Args:
        urls: Shards: paths or URLs with braces, local wildcards, ``::`` between several; or a
            list.
        sampling: ``resampled`` draws shards with replacement, ``shuffled`` gives each sample once
            in a new order each epoch, ``sequential`` in file order. Default: resampled for train,
            sequential for the others.
        reader: ``stream`` reads whole shards forward; ``indexed`` reads samples by their offsets,
            in an order that neither ranks nor workers change, and remote shards need member tables
            beside them for it. ``auto`` streams what is resampled, has stages, or is remote
            without such tables.
        dataset_size: Samples of an epoch. Needed where no counts are known, unless the one http(s)
            folder of the shards has open_clip's ``__len__``; under ``resampled`` it may differ from
            the counts, as an epoch is nominal there.
        remainder: Samples that fill no whole step: ``drop`` them, ``pad`` with repeats of weight 0,
            or ``balanced``: smaller batches of nearly equal size. Default: drop for train, balanced
            for the others.
        batch_size: Samples per rank and step; overrides the module's for this split.
        fields: Batch key to member suffixes; overrides the module's for this split.
        defaults: Batch key to the value of samples that lack an optional field; overrides the
            module's for this split.
        decode: Batch key, or a suffix with its dot, to decoder; overrides the module's for this
            split.
        classes: Batch key to the names of classes, in the order of their numbers; overrides the
            module's for this split.
        transforms: Batch key to callable, its import path, or class_path and init_args; overrides
            the module's for this split.
        sample_transforms: Callables from a dict of fields to a dict of fields, or what names them
            as in `transforms`; overrides the module's for this split.
        collate_fn: Callable from the list of the samples of a batch to the batch, or what names it
            as in `transforms`; overrides the module's for this split.
        batch_keys: Reserved entries of a batch; overrides the module's for this split.
        stages: Callables from an iterator of samples to an iterator of samples, or what names them
            as in `transforms`; run after the fields are decoded.
        shuffle_buffer: Stream reader: samples that webdataset's shuffle holds; 0 for none.
        shuffle_run: Indexed reader: samples kept together when shards are mixed; 0: whole shards.
        shuffle_block: Indexed reader: samples shuffled together.
        on_bad_sample: ``raise`` says which sample is bad; ``substitute`` puts another one in its
            place, with ``__weight__`` 0, and counts it.
        max_bad: Bad samples of an epoch, over all ranks, that ``substitute`` may replace.
    """

    urls: str | list[str]
    sampling: Literal["resampled", "shuffled", "sequential"] | None = None
    reader: Literal["auto", "stream", "indexed"] = "auto"
    dataset_size: int | None = None
    remainder: Literal["drop", "pad", "balanced"] | None = None
    batch_size: int | None = None
    fields: dict[str, str] | None = None
    defaults: dict[str, Any] | None = None
    decode: dict[str, Any] | None = None
    classes: dict[str, list[str]] | None = None
    transforms: dict[str, Any] | None = None
    sample_transforms: list[Any] | None = None
    collate_fn: Any = None
    batch_keys: list[str] | None = None
    stages: list[Any] = field(default_factory=list[Any])
    shuffle_buffer: int = 1000
    shuffle_run: int = 64
    shuffle_block: int = 16_384
    on_bad_sample: Literal["raise", "substitute"] = "raise"
    max_bad: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that are wrong whatever the shards hold.

        Raises:
            ConfigError: A setting is wrong; the message names it, its value and the remedy.
        """
        if not self.urls:
            raise ConfigError(
                "urls is empty; give a path, a pattern like data/{000..009}.tar or a list"
            )
        require_choice("sampling", self.sampling, (None, "resampled", "shuffled", "sequential"))
        require_choice("reader", self.reader, ("auto", "stream", "indexed"))
        require_choice("remainder", self.remainder, (None, "drop", "pad", "balanced"))
        require_choice("on_bad_sample", self.on_bad_sample, ("raise", "substitute"))
        for name, value in (("dataset_size", self.dataset_size), ("batch_size", self.batch_size)):
            if value is not None:
                require_at_least(name, value, 1)
        require_at_least("shuffle_buffer", self.shuffle_buffer, 0)
        require_at_least("shuffle_run", self.shuffle_run, 0)
        require_at_least("shuffle_block", self.shuffle_block, 1)
        require_at_least("max_bad", self.max_bad, 0)
        if self.on_bad_sample == "substitute" and not self.max_bad:
            raise ConfigError(
                "on_bad_sample='substitute' needs a budget: set max_bad to the bad samples that an "
                "epoch may have over all ranks, at least 1"
            )
        if self.max_bad and self.on_bad_sample == "raise":
            raise ConfigError(
                f"max_bad={self.max_bad} has no effect with on_bad_sample='raise'; leave it at 0, "
                "or set on_bad_sample='substitute'"
            )
        self._load_callables()

    def __repr__(self) -> str:
        """Like that of any dataclass, but without passwords, signatures and commands in URLs."""
        urls = self.urls
        shown = redact_pattern(urls) if isinstance(urls, str) else list(map(redact_pattern, urls))
        others = [f"{setting.name}={getattr(self, setting.name)!r}" for setting in fields(self)[1:]]
        return f"{type(self).__name__}({', '.join([f'urls={shown!r}', *others])})"

    def _load_callables(self) -> None:
        """Replace names of callables by the callables, once and before any use."""
        if self.transforms is not None:
            transforms = load_callables("the transform of", self.transforms)
            object.__setattr__(self, "transforms", transforms)
        if self.decode is not None:
            object.__setattr__(self, "decode", load_decoders(self.decode))
        if self.sample_transforms is not None:
            loaded = load_callable_list("sample_transforms", self.sample_transforms)
            object.__setattr__(self, "sample_transforms", loaded)
        if self.collate_fn is not None:
            object.__setattr__(self, "collate_fn", load_callable("collate_fn", self.collate_fn))
        object.__setattr__(self, "stages", load_callable_list("stages", self.stages))


def split_configs(given: Mapping[Split, object]) -> dict[Split, SplitConfig | None]:
    """The configurations of splits, which may be given by their urls alone or by dicts.

    Args:
        given: A SplitConfig, what `urls` may be, or a dict of settings; None: there is no split.

    Raises:
        ConfigError: One is none of these, or a setting is wrong.
    """
    return {name: _split_config(name, split) for name, split in given.items()}


def _split_config(name: str, split: object) -> SplitConfig | None:
    split = with_urls(split)
    if isinstance(split, Mapping):
        return build(SplitConfig, cast("Mapping[str, Any]", split), name)
    if split is not None and not isinstance(split, SplitConfig):
        raise ConfigError(
            f"{name} must be a SplitConfig, a dict of its settings, or shards alone as a path, a "
            f"pattern or a list of them; got {type(split).__name__}"
        )
    return split


def with_urls(split: object) -> object:
    """A split that is given by its urls alone as ``{"urls": ...}``, and any other as it is."""
    if isinstance(split, str | Path):
        return {"urls": str(split)}
    if isinstance(split, Sequence):
        urls = cast("Sequence[object]", split)
        return {"urls": [str(url) if isinstance(url, Path) else url for url in urls]}
    return split
