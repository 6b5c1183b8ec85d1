"""Train from plain WebDataset tar shards under any Lightning strategy, all ranks in lockstep.

The names below are the public ones. They are loaded on first use, so that importing the package
costs no torch and no Lightning, and less than a millisecond: this module imports nothing.
"""

TYPE_CHECKING = False  # type checkers take this name for true; to import `typing` takes longer
if TYPE_CHECKING:
    from lightning_shards.build.map_dataset import ShardDataset
    from lightning_shards.callbacks.digest import EpochDigest
    from lightning_shards.callbacks.predictions import ShardPredictionWriter
    from lightning_shards.callbacks.resume import ExactResume
    from lightning_shards.callbacks.set_epoch import SetEpoch
    from lightning_shards.callbacks.throughput import DataThroughputMonitor
    from lightning_shards.cli import ShardCLI
    from lightning_shards.config.loading import LoaderConfig, RayConfig
    from lightning_shards.config.mixtures import ComponentConfig, WeightChangeConfig
    from lightning_shards.config.splits import BatchAlikeConfig, SplitConfig
    from lightning_shards.datamodule import ShardDataModule
    from lightning_shards.dataprep.writer import ShardWriter
    from lightning_shards.errors import (
        ConfigError,
        DamagedShardError,
        DigestError,
        FileAccessError,
        IndexMismatchError,
        MissingFieldError,
        PlanError,
        RankError,
        SampleError,
        ShardError,
        ShardNotFoundError,
        StateError,
        StorageError,
        TransformError,
        UnsafeError,
        UrlError,
        WorkerError,
    )
    from lightning_shards.loader import ShardLoader
    from lightning_shards.plan.epoch import EpochPlan, EpochSchedule, plan_epoch
    from lightning_shards.plan.order import Order, SampleOrder
    from lightning_shards.plan.place import Cursor, Place
    from lightning_shards.readers.source import ServedSample, Source, SourceDescription
    from lightning_shards.samples.clips import DecodeAudioClip, DecodeVideoClip
    from lightning_shards.samples.collate import LoadedBatch
    from lightning_shards.samples.crops import (
        DecodeCenterCrop,
        DecodeRandomResizedCrop,
        DecodeResize,
    )
    from lightning_shards.samples.pad import PadCollate
    from lightning_shards.shards.filters.predicates import ShardColumns
    from lightning_shards.shards.index import ShardIndex
    from lightning_shards.shards.storage.protocol import ShardReads, ShardStat, Storage
    from lightning_shards.shards.urls import expand_urls
    from lightning_shards.workers.pool import BatchStream, Pool, PoolDescription

__version__ = "0.1.0"

_HOMES = {
    "BatchAlikeConfig": "config.splits",
    "BatchStream": "workers.pool",
    "ComponentConfig": "config.mixtures",
    "ConfigError": "errors",
    "Cursor": "plan.place",
    "DamagedShardError": "errors",
    "DataThroughputMonitor": "callbacks.throughput",
    "DecodeAudioClip": "samples.clips",
    "DecodeCenterCrop": "samples.crops",
    "DecodeRandomResizedCrop": "samples.crops",
    "DecodeResize": "samples.crops",
    "DecodeVideoClip": "samples.clips",
    "DigestError": "errors",
    "EpochDigest": "callbacks.digest",
    "EpochPlan": "plan.epoch",
    "EpochSchedule": "plan.epoch",
    "ExactResume": "callbacks.resume",
    "FileAccessError": "errors",
    "IndexMismatchError": "errors",
    "LoadedBatch": "samples.collate",
    "LoaderConfig": "config.loading",
    "RayConfig": "config.loading",
    "MissingFieldError": "errors",
    "Order": "plan.order",
    "PadCollate": "samples.pad",
    "Place": "plan.place",
    "PlanError": "errors",
    "Pool": "workers.pool",
    "PoolDescription": "workers.pool",
    "RankError": "errors",
    "SampleError": "errors",
    "SampleOrder": "plan.order",
    "ServedSample": "readers.source",
    "SetEpoch": "callbacks.set_epoch",
    "ShardCLI": "cli",
    "ShardColumns": "shards.filters.predicates",
    "ShardDataModule": "datamodule",
    "ShardDataset": "build.map_dataset",
    "ShardError": "errors",
    "ShardIndex": "shards.index",
    "ShardLoader": "loader",
    "ShardNotFoundError": "errors",
    "ShardPredictionWriter": "callbacks.predictions",
    "ShardReads": "shards.storage.protocol",
    "ShardStat": "shards.storage.protocol",
    "ShardWriter": "dataprep.writer",
    "Source": "readers.source",
    "SourceDescription": "readers.source",
    "SplitConfig": "config.splits",
    "StateError": "errors",
    "Storage": "shards.storage.protocol",
    "StorageError": "errors",
    "TransformError": "errors",
    "UnsafeError": "errors",
    "UrlError": "errors",
    "WeightChangeConfig": "config.mixtures",
    "WorkerError": "errors",
    "expand_urls": "shards.urls",
    "plan_epoch": "plan.epoch",
}

__all__ = [
    "BatchAlikeConfig",
    "BatchStream",
    "ComponentConfig",
    "ConfigError",
    "Cursor",
    "DamagedShardError",
    "DataThroughputMonitor",
    "DecodeAudioClip",
    "DecodeCenterCrop",
    "DecodeRandomResizedCrop",
    "DecodeResize",
    "DecodeVideoClip",
    "DigestError",
    "EpochDigest",
    "EpochPlan",
    "EpochSchedule",
    "ExactResume",
    "FileAccessError",
    "IndexMismatchError",
    "LoadedBatch",
    "LoaderConfig",
    "MissingFieldError",
    "Order",
    "PadCollate",
    "Place",
    "PlanError",
    "Pool",
    "PoolDescription",
    "RankError",
    "RayConfig",
    "SampleError",
    "SampleOrder",
    "ServedSample",
    "SetEpoch",
    "ShardCLI",
    "ShardColumns",
    "ShardDataModule",
    "ShardDataset",
    "ShardError",
    "ShardIndex",
    "ShardLoader",
    "ShardNotFoundError",
    "ShardPredictionWriter",
    "ShardReads",
    "ShardStat",
    "ShardWriter",
    "Source",
    "SourceDescription",
    "SplitConfig",
    "StateError",
    "Storage",
    "StorageError",
    "TransformError",
    "UnsafeError",
    "UrlError",
    "WeightChangeConfig",
    "WorkerError",
    "expand_urls",
    "plan_epoch",
]


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'lightning_shards' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"lightning_shards.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
