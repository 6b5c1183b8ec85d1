"""The configuration: frozen dataclasses that YAML, omegaconf and the command line can fill.

Configuration stops here. The layers below take plain arguments.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

from lightning_shards.errors import ConfigError
from lightning_shards.parsing import build, load_callable, load_callables
from lightning_shards.samples.class_labels import with_given_classes
from lightning_shards.samples.fields import UNSAFE_DECODERS, Field, make_fields
from lightning_shards.samples.transforms import takes_bytes
from lightning_shards.shards.remote.options import require_store_options
from lightning_shards.shards.scheme_table import RANGED_SCHEMES
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
        decode: Batch key to decoder; overrides the module's for this split.
        classes: Batch key to the names of classes, in the order of their numbers; overrides the
            module's for this split.
        transforms: Batch key to callable, its import path, or class_path and init_args; overrides
            the module's for this split.
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
    decode: dict[str, str] | None = None
    classes: dict[str, list[str]] | None = None
    transforms: dict[str, Any] | None = None
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
        stages = [load_callable(f"stages[{i}]", stage) for i, stage in enumerate(self.stages)]
        object.__setattr__(self, "stages", stages)


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


@dataclass(frozen=True)
class LoaderConfig:
    """How batches are made; no setting here changes which batches they are.

    Args:
        pool: What workers are: ``processes``, ``threads`` of the trainer's own process, or
            ``inline``, the trainer's own thread; ``num_workers=0`` is always inline. Threads copy
            nothing and start at once; a training loop of much Python wants processes. Only one
            thread makes small batches without images and transforms from local shards.
        threads_per_worker: Threads in each worker process. Threads need transforms that draw from
            the ``rng`` they are given.
        prefetch_factor: Batches that each worker keeps ready; of small ones, messages of several.
        prefetch_bytes: Most bytes that the workers of a rank keep ready: fewer batches than
            ``prefetch_factor`` where they are large, but at least one batch or message (4 MiB) of
            each worker.
        multiprocessing_context: How worker processes start. A fork of a rank with gloo and autograd
            threads can deadlock.
        pin_memory: Whether batches are copied into page-locked memory. Default: when the
            accelerator is CUDA.
        worker_timeout_s: Seconds that the trainer waits for a batch, the first one and the start
            of the workers included. Then worker processes are ended, and the error says which one
            stood still in which stage; threads and ``inline`` cannot be ended, and a warning shows
            where they are. 0: never.
        cache_dir: Where counts and member tables are kept. Default: ~/.cache/lightning_shards.
        storage_options: How the stores of remote shards are reached, by scheme: ``endpoint``,
            ``region``, ``anonymous``, ``profile`` and others. No secrets: these stay where the
            tools of each provider keep them.
        connections: Requests for remote shards that a node has under way at most, over all of its
            ranks and workers.
        cache_gib: GiB that the pieces of remote shards may take in ``cache_dir``, of all runs on a
            node together. Default: three quarters of the free disk, 50 GiB always left.
    """

    pool: Literal["processes", "threads", "inline"] = "processes"
    threads_per_worker: int = 1
    prefetch_factor: int = 2
    prefetch_bytes: int = 2**30
    multiprocessing_context: Literal["forkserver", "spawn", "fork"] = "forkserver"
    pin_memory: bool | None = None
    worker_timeout_s: float = 300.0
    cache_dir: str | None = None
    storage_options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    connections: int = 64
    cache_gib: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings that cannot work.

        Raises:
            ConfigError: A setting is wrong; the message names it, its value and the remedy.
        """
        require_choice("pool", self.pool, ("processes", "threads", "inline"))
        require_at_least("threads_per_worker", self.threads_per_worker, 1)
        if self.threads_per_worker > 1 and self.pool != "processes":
            raise ConfigError(
                f"threads_per_worker={self.threads_per_worker} goes with pool='processes', not "
                f"{self.pool!r}; leave it at 1 and set num_workers"
            )
        require_at_least("prefetch_factor", self.prefetch_factor, 1)
        require_at_least("prefetch_bytes", self.prefetch_bytes, 1)
        timeout_s = self.worker_timeout_s
        if type(timeout_s) not in {int, float} or not 0 <= timeout_s < math.inf:
            raise ConfigError(
                f"worker_timeout_s must be a number of seconds, 0 for no limit, got {timeout_s!r}"
            )
        require_choice(
            "multiprocessing_context", self.multiprocessing_context, ("forkserver", "spawn", "fork")
        )
        require_at_least("connections", self.connections, 1)
        cache_gib = self.cache_gib
        is_number = type(cache_gib) in {int, float, type(None)}
        if not is_number or not 0 < (1 if cache_gib is None else cache_gib) < math.inf:
            raise ConfigError(f"cache_gib must be a number above 0, or left out, got {cache_gib!r}")
        for scheme, options in self.storage_options.items():
            if scheme not in RANGED_SCHEMES:
                raise ConfigError(
                    f"storage_options has {scheme!r}; its keys are schemes: "
                    f"{', '.join(RANGED_SCHEMES)}"
                )
            if not isinstance(options, Mapping):
                raise ConfigError(
                    f"storage_options of {scheme} must be a mapping of options, as in "
                    f"{{'endpoint': ...}}, got a {type(options).__name__}"
                )
            require_store_options(scheme, cast("Mapping[str, Any]", options))

    def needs_server(self, num_workers: int) -> bool:
        """Whether so many workers are processes that come from a fork server."""
        is_forked = self.multiprocessing_context == "forkserver"
        return num_workers > 0 and self.pool == "processes" and is_forked


def require_at_least(name: str, value: int, least: int) -> None:
    """Check a whole number against its least value.

    Raises:
        ConfigError: It is smaller, or not a whole number.
    """
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")


def require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Check a setting against its choices.

    Raises:
        ConfigError: It is not one of them.
    """
    if value not in choices:
        raise ConfigError(f"{name} must be one of {list(choices)}, got {value!r}")


@dataclass(frozen=True)
class DataConfig:
    """The settings of all splits, checked: the arguments of `ShardDataModule`, which explains them.

    What Lightning does with a split is all that it lacks, so that tools need no Lightning.
    """

    train: SplitConfig | None = None
    val: SplitConfig | None = None
    test: SplitConfig | None = None
    predict: SplitConfig | None = None
    _: KW_ONLY
    fields: dict[str, str]
    decode: dict[str, str] | None = None
    classes: dict[str, list[str]] | None = None
    transforms: dict[str, Any] | None = None
    device_transforms: dict[str, Any] | None = None
    batch_size: int = 32
    num_workers: int = 2
    seed: int = 0
    batch_format: Literal["dict", "tuple"] = "dict"
    loader: LoaderConfig = LoaderConfig()
    allow_unsafe: list[str] | None = None

    def __post_init__(self) -> None:
        """Load splits and callables by what names them, and refuse settings that cannot work.

        Raises:
            ConfigError: A setting is wrong; the message names it, its value and the remedy.
        """
        for name, split in split_configs(self.splits).items():
            object.__setattr__(self, name, split)
        for name, kind in (("transforms", "transform"), ("device_transforms", "device transform")):
            loaded = load_callables(f"the {kind} of", getattr(self, name) or {})
            object.__setattr__(self, name, loaded)
        require_at_least("batch_size", self.batch_size, 1)
        require_at_least("num_workers", self.num_workers, 0)
        require_at_least("seed", self.seed, 0)
        require_choice("batch_format", self.batch_format, ("dict", "tuple"))
        for name in self.allow_unsafe or ():
            require_choice("allow_unsafe", name, ("pipe", *sorted(UNSAFE_DECODERS)))
        for name, split in self.splits.items():
            if split is not None:
                self.fields_of(name)

    @property
    def splits(self) -> dict[Split, SplitConfig | None]:
        """The settings of each split as they were given; None: there is no such split."""
        return {"train": self.train, "val": self.val, "test": self.test, "predict": self.predict}

    def split(self, name: Split) -> SplitConfig:
        """The settings of a split, where each missing one is that of all splits or a default.

        Raises:
            ConfigError: There is no such split.
        """
        config = self.splits.get(name)
        if config is None:
            given = [split for split, each in self.splits.items() if each]
            raise ConfigError(
                f"there is no {name!r} split; this module was given {given}: add "
                f"{name}=SplitConfig(urls=...)"
            )
        is_train = name == "train"
        return replace(
            config,
            sampling=config.sampling or ("resampled" if is_train else "sequential"),
            remainder=config.remainder or ("drop" if is_train else "balanced"),
            batch_size=config.batch_size or self.batch_size,
            fields=self.fields if config.fields is None else config.fields,
            decode=self.decode or {} if config.decode is None else config.decode,
            classes=self.classes or {} if config.classes is None else config.classes,
            transforms=self.transforms if config.transforms is None else config.transforms,
        )

    def fields_of(self, split: Split) -> tuple[Field, ...]:
        """The fields of a split, as far as they are known without its shards.

        Raises:
            ConfigError: These fields cannot be taken from any shard.
        """
        config = self.split(split)
        fields, transforms = config.fields or {}, config.transforms or {}
        decode = config.decode or {}
        unknown = sorted(transforms.keys() - fields.keys())
        if unknown and not config.stages:  # a stage may add fields
            raise ConfigError(
                f"transforms names {unknown}, and the fields are {sorted(fields)}; name a field, "
                "or add one to fields"
            )
        decoding = [name for name in fields if takes_bytes(transforms.get(name))]
        for name in decoding:
            if decode.get(name, "raw") != "raw":
                raise ConfigError(
                    f"the transform of {name!r} decodes by itself, and decode={decode[name]!r} "
                    f"would do so before it; leave {name!r} out of decode"
                )
        decoders = decode | dict.fromkeys(decoding, "raw")
        made = make_fields(fields, decoders, frozenset(self.allow_unsafe or ()))
        return with_given_classes(made, config.classes or {})
