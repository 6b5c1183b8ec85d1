"""`ShardWriter`, which writes samples from any Python code to shards with their index."""

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from lightning_shards.dataprep.finished import FinishedShards, shard_name, shard_pattern, shards_in
from lightning_shards.dataprep.packing import DEFAULT_MAX_BYTES
from lightning_shards.dataprep.tar_writer import (
    TarWriter,
    WrittenShard,
    as_bytes,
    check_sample,
    read_back,
    tar_size,
)
from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.shards.files import new_file
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore


class ShardWriter:
    """Writes samples to `FOLDER/PREFIX-000000.tar` and so on, and their index at the end.

    A sample is a dict of `__key__` and one value for each field; other names like `__x__` are left
    out, because they belong to readers. Text is stored as UTF-8. The same samples give the same
    bytes. Every file appears whole, and the index comes last: before that, a run that died can be
    started again and overwrites the unfinished files. A finished folder is never touched::

        with ShardWriter("data/train", prefix="train") as writer:
            for number, (image, label) in enumerate(samples):
                writer.write({"__key__": f"{number:08d}", "jpg": image, "cls": str(label)})

    Keys must be unique; they are held in memory, 100 bytes each. A shard that cannot be written,
    as on a full disk, aborts the writer, because it may hold half a sample.

    Args:
        folder: The folder of one split, because an index is of a folder; made if it is missing.
        prefix: Prefix of the names of shards.
        max_samples: Most samples of a shard.
        max_bytes: Most bytes of a shard; a larger sample gets a shard of its own. Default: 1 GB if
            `max_samples` is not given.
        cache_dir: Where member tables are kept, for the first run that trains on the shards.

    Raises:
        ConfigError: The folder has shards of this prefix that are not left from an unfinished run.
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
        for name, value in (("max_samples", max_samples), ("max_bytes", max_bytes)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        self._folder, self._prefix = Path(folder), prefix
        self._max_samples, self._max_bytes = max_samples, max_bytes
        self._tables = TableStore(CacheFolder(cache_dir), with_crc32=True)
        self._keys: set[str] = set()
        self._shards: list[WrittenShard] = []
        self._finished: FinishedShards | None = None
        self._file = ExitStack()
        self._tar: TarWriter | None = None
        self._state: Literal["open", "closed", "aborted"] = "open"

    @property
    def urls(self) -> str:
        """The pattern of the shards for a configuration, after they are written."""
        return shard_pattern(self._folder, self._shards, self._prefix)

    @property
    def shards(self) -> tuple[WrittenShard, ...]:
        """The shards that are complete."""
        return tuple(self._shards)

    def write(self, sample: Mapping[str, bytes | str]) -> None:
        """Add one sample.

        Raises:
            SampleError: It could not be read back as it is, or its key is a repeat.
            ConfigError: The writer is closed or aborted.
        """
        self._require_open()
        key, fields = self._checked(sample)
        if self._tar is not None and self._is_full(self._tar, fields):
            self._end_shard(self._tar)
        tar = self._tar or self._begin_shard()
        with self._aborted_by_errors():
            tar.write(key, fields)
        self._keys.add(key)

    def close(self) -> None:
        """Finish the last shard and write the index; nothing if this was closed or aborted before.

        Raises:
            SampleError: No sample was written.
        """
        if self._state != "open":
            return
        if self._tar is not None:
            self._end_shard(self._tar)
        if not self._shards:
            self.abort()
            raise SampleError(f"no sample was written to {self._folder}")
        finished = self._begin()
        names = {shard.name for shard in self._shards}
        for path in shards_in(self._folder, self._prefix):  # left from a longer run that died
            if path.name not in names:
                path.unlink()
        finished.list_shards("", self._shards)
        self._release()
        self._state = "closed"

    def abort(self) -> None:
        """Discard the unfinished shard; without an index the folder may be written again."""
        if self._state == "open":
            self._release()
            self._state = "aborted"

    def __enter__(self) -> Self:
        self._require_open()
        self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _require_open(self) -> None:
        if self._state != "open":
            raise ConfigError(f"the writer of {self._folder} is {self._state}; make another one")

    def _release(self) -> None:
        """Close what is open; an unfinished shard is discarded."""
        error = SampleError("given up")
        self._file.__exit__(type(error), error, None)
        if self._finished is not None:
            self._finished.close()
        self._tar = self._finished = None

    @contextmanager
    def _aborted_by_errors(self) -> Generator[None]:
        try:
            yield
        except BaseException:
            self.abort()
            raise

    def _begin(self) -> FinishedShards:
        """What is noted of the folder, which is locked from the first use on."""
        if self._finished is None:
            limits = {"max_samples": self._max_samples, "max_bytes": self._max_bytes}
            settings = {"writer": "ShardWriter", "prefix": self._prefix, **limits}
            finished = FinishedShards(self._folder, settings, {"": self._prefix})
            if finished.is_finished():
                finished.close()
                raise ConfigError(
                    f"{self._folder} holds a finished data set; delete it, or name another folder"
                )
            self._finished = finished
        return self._finished

    def _checked(self, sample: Mapping[str, bytes | str]) -> tuple[str, list[tuple[str, bytes]]]:
        """Key and members, after all checks, so that no error leaves half a sample written."""
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
        return key, fields

    def _is_full(self, tar: TarWriter, fields: list[tuple[str, bytes]]) -> bool:
        """Whether the sample belongs in the next shard."""
        size = tar.position + sum(tar_size(len(data)) for _, data in fields)
        return bool(
            (self._max_samples and tar.samples >= self._max_samples)
            or (self._max_bytes and size > self._max_bytes)
        )

    def _begin_shard(self) -> TarWriter:
        self._begin()
        path = self._folder / shard_name(self._prefix, len(self._shards))
        self._tar = TarWriter(self._file.enter_context(new_file(path)))
        return self._tar

    def _end_shard(self, tar: TarWriter) -> None:
        """Give the shard its name, and read it back for its member table."""
        with self._aborted_by_errors():
            shard = tar.finish(shard_name(self._prefix, len(self._shards)))
            self._file.close()
            self._tar = None
            read_back(self._folder / shard.name, shard, self._tables)
            self._begin().note("", shard)
            self._shards.append(shard)
