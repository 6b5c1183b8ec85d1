"""Train from plain WebDataset tar shards under any Lightning strategy, all ranks in lockstep.

The names below are the public ones. They are loaded on first use, so that importing the package
costs no torch and no Lightning, and less than a millisecond: this module imports nothing.
"""

TYPE_CHECKING = False  # type checkers take this name for true; to import `typing` takes longer
if TYPE_CHECKING:  # the aliases say that the names are public; each has an import of its own
    from lightning_shards.build.map_dataset import ShardDataset as ShardDataset
    from lightning_shards.callbacks.digest import EpochDigest as EpochDigest
    from lightning_shards.callbacks.predictions import (
        ShardPredictionWriter as ShardPredictionWriter,
    )
    from lightning_shards.callbacks.resume import ExactResume as ExactResume
    from lightning_shards.callbacks.set_epoch import SetEpoch as SetEpoch
    from lightning_shards.callbacks.throughput import DataThroughputMonitor as DataThroughputMonitor
    from lightning_shards.cli import ShardCLI as ShardCLI
    from lightning_shards.config.module import LoaderConfig as LoaderConfig
    from lightning_shards.config.module import RayConfig as RayConfig
    from lightning_shards.config.splits import BatchAlikeConfig as BatchAlikeConfig
    from lightning_shards.config.splits import ComponentConfig as ComponentConfig
    from lightning_shards.config.splits import SplitConfig as SplitConfig
    from lightning_shards.config.splits import WeightChangeConfig as WeightChangeConfig
    from lightning_shards.datamodule import ShardDataModule as ShardDataModule
    from lightning_shards.dataprep.writer import ShardWriter as ShardWriter
    from lightning_shards.errors import ConfigError as ConfigError
    from lightning_shards.errors import DamagedShardError as DamagedShardError
    from lightning_shards.errors import DigestError as DigestError
    from lightning_shards.errors import FileAccessError as FileAccessError
    from lightning_shards.errors import IndexMismatchError as IndexMismatchError
    from lightning_shards.errors import MissingFieldError as MissingFieldError
    from lightning_shards.errors import PlanError as PlanError
    from lightning_shards.errors import RankError as RankError
    from lightning_shards.errors import SampleError as SampleError
    from lightning_shards.errors import ShardError as ShardError
    from lightning_shards.errors import ShardNotFoundError as ShardNotFoundError
    from lightning_shards.errors import StateError as StateError
    from lightning_shards.errors import StorageError as StorageError
    from lightning_shards.errors import TransformError as TransformError
    from lightning_shards.errors import UnsafeError as UnsafeError
    from lightning_shards.errors import UrlError as UrlError
    from lightning_shards.errors import WorkerError as WorkerError
    from lightning_shards.loader import ShardLoader as ShardLoader
    from lightning_shards.plan.epoch import EpochPlan as EpochPlan
    from lightning_shards.plan.epoch import EpochSchedule as EpochSchedule
    from lightning_shards.plan.epoch import plan_epoch as plan_epoch
    from lightning_shards.plan.order import Order as Order
    from lightning_shards.plan.order import SampleOrder as SampleOrder
    from lightning_shards.plan.place import Cursor as Cursor
    from lightning_shards.plan.place import Place as Place
    from lightning_shards.readers.source import ServedSample as ServedSample
    from lightning_shards.readers.source import Source as Source
    from lightning_shards.readers.source import SourceDescription as SourceDescription
    from lightning_shards.samples.clips import DecodeAudioClip as DecodeAudioClip
    from lightning_shards.samples.clips import DecodeVideoClip as DecodeVideoClip
    from lightning_shards.samples.collate import LoadedBatch as LoadedBatch
    from lightning_shards.samples.crops import DecodeCenterCrop as DecodeCenterCrop
    from lightning_shards.samples.crops import DecodeRandomResizedCrop as DecodeRandomResizedCrop
    from lightning_shards.samples.crops import DecodeResize as DecodeResize
    from lightning_shards.samples.pad import PadCollate as PadCollate
    from lightning_shards.shards.filters.applying import ShardColumns as ShardColumns
    from lightning_shards.shards.index import ShardIndex as ShardIndex
    from lightning_shards.shards.patterns import expand_urls as expand_urls
    from lightning_shards.shards.storage.protocol import ShardReads as ShardReads
    from lightning_shards.shards.storage.protocol import ShardStat as ShardStat
    from lightning_shards.shards.storage.protocol import Storage as Storage
    from lightning_shards.workers.pool import BatchStream as BatchStream
    from lightning_shards.workers.pool import Pool as Pool
    from lightning_shards.workers.pool import PoolDescription as PoolDescription

__version__ = "0.1.0"


def _read_homes() -> dict[str, str]:
    """By public name the module that defines it, as the imports above say, which do not run."""
    source: str = globals()["__loader__"].get_data(__file__).decode()
    lines = source.replace("(\n", "").splitlines()  # with the name behind an open bracket
    words = [line.split() for line in lines if line.startswith("    from lightning_shards.")]
    return dict(sorted((each[3], each[1]) for each in words))


_HOMES = _read_homes()
if not TYPE_CHECKING:  # type checkers take the aliases above
    __all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'lightning_shards' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(_HOMES)
