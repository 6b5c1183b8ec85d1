"""How a source travels to actors: pickled once, with what another machine can make use of.

Ray's pickler sends functions and classes of the main script and of notebooks by value. Two things
would mean something else on another machine, and are replaced: relative paths, and files in the
cache of this node.
"""

import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lightning_shards.plan.kept_order import HeldNumbers
from lightning_shards.readers.source import Source
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.made_files import MappedNumbers
from lightning_shards.shards.urls import is_local, scheme_of
from lightning_shards.workers.ray.cluster import ray
from lightning_shards.workers.worker_imports import tried_to_pickle


def packed_source(source: Source) -> bytes:
    """A source, pickled for actors; `pickle.loads` unpacks it.

    Raises:
        ConfigError: A callable of the user's in it cannot be pickled, which is named.
    """
    return tried_to_pickle(source, _packed, "Ray actors")


def _packed(value: object) -> bytes:
    file = io.BytesIO()
    _Packer(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


class _Packer(ray.cloudpickle.CloudPickler):
    def reducer_override(self, obj: Any) -> Any:
        """How an object is made again elsewhere."""
        if isinstance(obj, MappedNumbers):
            return HeldNumbers, (np.array(obj.values()),)
        if isinstance(obj, ShardIndex):
            return replace(obj, urls=tuple(map(_absolute, obj.urls))).__reduce__()
        return super().reducer_override(obj)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] Ray's


def _absolute(url: str) -> str:
    return str(Path(url).absolute()) if is_local(url) and not scheme_of(url) else url
