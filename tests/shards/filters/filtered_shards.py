"""Shards for the tests of filters, and what the filters leave of them."""

from webdataset.writer import TarWriter

from lightning_shards.shards.counts import load_index
from lightning_shards.shards.filters.applying import filtered_index
from lightning_shards.shards.filters.settings import sample_filter
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore

COUNTS = [5, 0, 9, 3, 12, 1]


def pack_texts(folder, counts=COUNTS, key="{:04d}"):
    """Sample i has a text of i bytes, and every third one a class."""
    folder.mkdir(parents=True, exist_ok=True)
    number, urls = 0, []
    for shard, count in enumerate(counts):
        urls.append(str(folder / f"s{shard}.tar"))
        with TarWriter(urls[-1]) as writer:
            for _ in range(count):
                sample = {"__key__": key.format(number), "txt": "x" * number}
                writer.write(sample | ({"cls": "1"} if number % 3 == 0 else {}))
                number += 1
    return urls


def applied(urls, cache, keep=None, exclude=None):
    """The index of what is left."""
    folder = CacheFolder(cache)
    index = load_index(urls, cache=folder)
    chosen = sample_filter(keep, exclude)
    return filtered_index(index, chosen, TableStore(folder), folder)


def numbers_left(index):
    """The numbers of the samples that are left, through all shards."""
    begins = index.counts.cumsum() - index.counts
    return [
        int(begins[shard] + number)
        for shard in range(index.num_shards)
        for number in index.kept.of_shard(shard).tolist()
    ]
