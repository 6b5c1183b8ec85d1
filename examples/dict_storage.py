"""python examples/dict_storage.py: a storage of your own; it inherits what it does not say."""

import io
import tempfile
import zlib
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

    def read(self, url: str, start: int, stop: int, stat: tuple | None = None) -> bytes:
        """Nothing if the shard has become another one."""
        return self._data(url)[start:stop] if stat in (None, self.stat(url)) else b""

    def open_stream(self, url: str) -> io.BytesIO:
        """The whole shard."""
        return io.BytesIO(self._data(url))

    def _data(self, url: str) -> bytes:
        if url in self._files:
            return self._files[url]
        raise ls.ShardNotFoundError(f"{url} is not in the dict")


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
