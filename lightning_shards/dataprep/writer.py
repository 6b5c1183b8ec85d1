"""`ShardWriter`, which writes samples from any Python code to shards with their index."""

from collections.abc import Mapping
from contextlib import ExitStack
from glob import escape
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, Self

from lightning_shards.dataprep.finished import FinishedShards, shard_name, shard_pattern
from lightning_shards.dataprep.packing import DEFAULT_MAX_BYTES, Packing
from lightning_shards.dataprep.tar_writer import (
    TarWriter,
    WrittenShard,
    as_bytes,
    check_sample,
    tar_size,
)
from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.shards.counts import WIDS
from lightning_shards.shards.files import CacheFolder, new_file
from lightning_shards.shards.tables import TableStore


class ShardWriter:
    """Writes samples to `FOLDER/PREFIX-000000.tar` and so on, and their index at the end.

    A sample is a dict of `__key__` and one value for each field; other names like `__x__` are left
    out, because they belong to readers. Bytes are stored as they are, text as UTF-8, and other
    values by suffix: arrays and lists of numbers in `npy`; dicts, lists and numbers in `json`;
    whole numbers in `cls`; numbers in `txt`. The same samples give the same bytes.
    Every file appears whole, and the index comes last: before that, a run that died can be started
    again and overwrites the unfinished files. A finished folder is never touched::

        with ShardWriter("data/train", prefix="train") as writer:
            for number, (image, label) in enumerate(samples):
                writer.write({"__key__": f"{number:08d}", "jpg": image, "cls": label})

    Keys must be unique; they are held in memory, 100 bytes each. A shard that cannot be written,
    as on a full disk, aborts the writer, because it may hold half a sample.

    Args:
        folder: The folder of one split, because an index is of a folder; made if it is missing.
        prefix: Prefix of the names of shards.
        max_samples: Most samples of a shard.
        max_bytes: Most bytes of a shard; a larger sample gets a shard of its own. Default: 1 GB if
            `max_samples` is not given.
        cache_dir: Where member tables are kept, for the first run that trains on the shards.

    Attributes:
        shards: The shards that are complete.

    Raises:
        ConfigError: The folder has shards that are not left from an unfinished run like this one,
            or another writer is at work in it.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        prefix: str = "shard",
        max_samples: int | None = None,
        max_bytes: int | None = None,
        cache_dir: str | PathLike[str] | None = None,
    ) -> None:
        if max_samples is None and max_bytes is None:
            max_bytes = DEFAULT_MAX_BYTES
        limits = {"max_samples": max_samples, "max_bytes": max_bytes}
        Packing(max_samples=max_samples, max_bytes=1 if max_bytes is None else max_bytes)  # checks
        self._folder, self._prefix = Path(folder), prefix
        self._max_samples, self._max_bytes = max_samples or inf, max_bytes or inf
        self._tables = TableStore(CacheFolder(cache_dir), with_crc32=True)
        self._keys: set[str] = set()
        self.shards: list[WrittenShard] = []
        settings = {"writer": "ShardWriter", "prefix": prefix} | limits
        self._finished = FinishedShards(self._folder, settings, {"": prefix})
        self._file, self._is_open = ExitStack(), True
        self._tar: TarWriter | None = None
        if (self._folder / WIDS).exists():
            self.abort()
            raise ConfigError(
                f"{self._folder} holds a finished data set; delete it, or name another folder"
            )
        for path in self._folder.glob(f"{escape(prefix)}-*.tar"):  # left from a run that died
            path.unlink()

    @property
    def urls(self) -> str:
        """The pattern of the shards for a configuration, after they are written."""
        return shard_pattern(self._folder, self.shards, self._prefix)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add one sample.

        Raises:
            SampleError: It could not be read back as it is, its key is a repeat, or a suffix does
                not take its value.
            ConfigError: The writer is closed or aborted.
        """
        if not self._is_open:
            raise ConfigError(f"the writer of {self._folder} is closed; make another one")
        key = sample.get("__key__")
        if not isinstance(key, str):
            raise SampleError(f"a sample needs a text as '__key__', got {key!r}")
        if key in self._keys:
            raise SampleError(f"{key!r} was written before; keys must be unique")
        fields = [
            (name, as_bytes(data, key, name))
            for name, data in sample.items()
            if not (name.startswith("__") and name.endswith("__"))
        ]
        check_sample(key, [name for name, _ in fields])
        size = sum(tar_size(len(data)) for _, data in fields)
        tar = self._tar
        try:
            if tar and (tar.samples >= self._max_samples or tar.position + size > self._max_bytes):
                self._end_shard(tar)
            if self._tar is None:
                path = self._folder / shard_name(self._prefix, len(self.shards))
                self._tar = TarWriter(self._file.enter_context(new_file(path)))
            self._tar.write(key, fields)
        except BaseException:
            self.abort()
            raise
        self._keys.add(key)

    def close(self) -> None:
        """Finish the last shard and write the index; nothing if this was closed or aborted before.

        Raises:
            SampleError: No sample was written.
        """
        if not self._is_open:
            return
        try:
            if self._tar is None:
                raise SampleError(f"no sample was written to {self._folder}")
            self._end_shard(self._tar)
            self._finished.list_shards("", self.shards)
        finally:
            self.abort()

    def abort(self) -> None:
        """Discard the unfinished shard; without an index the folder may be written again."""
        if self._is_open:
            error = SampleError("given up")
            self._file.__exit__(type(error), error, None)
            self._finished.close()
            self._tar, self._is_open = None, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _end_shard(self, tar: TarWriter) -> None:
        """Give the shard its name, and read it back for its member table."""
        shard = tar.finish(shard_name(self._prefix, len(self.shards)))
        self._file.close()
        self._tar = None
        self._tables.table_of(self._folder / shard.name, expected_samples=shard.samples)
        self.shards.append(shard)
