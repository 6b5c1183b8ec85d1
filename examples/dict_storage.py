"""python examples/dict_storage.py: a storage of your own; it inherits what it does not say."""

import io
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import lightning_shards as ls


class DictStorage(ls.Storage):
    """Shards in a dict, by their URLs."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def stat(self, url: str) -> ls.ShardStat:
        """A crc32 is another one when the bytes are."""
        return ls.ShardStat(len(self._data(url)), zlib.crc32(self._data(url)))

    def read_ranges(self, reads: Sequence[ls.ShardReads]) -> list[list[int]]:
        """Copy all ranges, one after the other."""
        return list(map(self._read, reads))

    def open_stream(self, url: str) -> io.BytesIO:
        """The whole shard."""
        return io.BytesIO(self._data(url))

    def _data(self, url: str) -> bytes:
        if url in self._files:
            return self._files[url]
        raise ls.ShardNotFoundError(f"{url} is not in the dict")

    def _read(self, reads: ls.ShardReads) -> list[int]:
        data, begin, sizes = self._data(reads.url), 0, list[int]()
        if reads.stat not in (None, self.stat(reads.url)):
            return [-1] * len(reads.starts)
        for start, stop in zip(reads.starts, reads.stops, strict=True):
            sizes.append(len(data[start:stop]))
            reads.into[begin : begin + sizes[-1]] = data[start:stop]
            begin += stop - start
        return sizes


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        with ls.ShardWriter(folder, max_samples=60) as shards:
            for number in range(200):
                shards.write({"__key__": f"{number:03d}", "cls": str(number)})
        files = {f"dict://{path.name}": path.read_bytes() for path in Path(folder).glob("*.tar")}
        split = ls.SplitConfig(f"{folder}/*.tar", sampling="shuffled")
        local = ls.ShardDataModule(train=split, fields={"label": "cls"}, num_workers=0).loader(
            "train"
        )
    index = ls.ShardIndex(tuple(sorted(files)), local.source.index.counts)
    source = replace(local.source, index=index, storages={"dict": partial(DictStorage, files)})
    loader = ls.ShardLoader(source, local.pool)
    print(f"{sum(len(batch['label']) for batch in loader)} samples from {len(files)} shards")
