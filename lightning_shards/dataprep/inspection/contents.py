"""Contents of members: their class, their kind of file, and whether they are compressed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from zlib import compress

import numpy as np

from lightning_shards.dataprep.input_files import InputExtent, InputFiles, input_file_at
from lightning_shards.dataprep.inspection.chosen_samples import ChosenSample
from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.samples.file_kinds import file_kind
from lightning_shards.shards.members import ShardReader
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.local_copies import local_copy
from lightning_shards.shards.tables import TableStore

_MAX_SAMPLES = 32
_MAX_BYTES = 1 << 16
_MAX_PREVIEWED = 1 << 20  # bytes: a larger member is not read to show its beginning
_MAX_LETTERS = 400


@dataclass(frozen=True, slots=True)
class Content:
    """The contents of the first members of a field.

    Attributes:
        kind: Kind of file by the first bytes; `text` or `bytes` if these are of no known kind.
        is_compressed: Whether files of this kind are compressed.
        ratio: Size of the members after zlib, each by itself, divided by their size before.
    """

    kind: str
    is_compressed: bool
    ratio: float


def contents_of(
    url: str,
    suffixes: Sequence[str],
    cache: CacheFolder,
    settings: TransportSettings | None = None,
) -> dict[str, Content]:
    """The contents of the first members of each of these fields in one shard, by their first bytes.

    Raises:
        ShardError: They cannot be read.
    """
    contents: dict[str, Content] = {}
    with local_copy(url, cache, settings) as shard, InputFiles() as files:
        table = TableStore(shard.cache).table_of(shard.path)
        file = input_file_at(shard.path)
        samples = range(min(table.num_samples, _MAX_SAMPLES))
        for suffix in suffixes:
            extents = filter(None, (table.find(sample, suffix) for sample in samples))
            data = [
                files.read(InputExtent(suffix, file, offset, min(size, _MAX_BYTES), b""))
                for offset, size, _ in extents
            ]
            if data:
                contents[suffix] = content_of(data)
    return contents


def content_of(members: Sequence[bytes]) -> Content:
    """The contents of these members; the kind is the most frequent one.

    >>> content_of([b"a cat, a cat, a cat, a cat"] * 9).kind
    'text'
    """
    kinds = Counter(map(file_kind, members))
    kind, is_compressed = kinds.most_common(1)[0][0]
    before = sum(map(len, members))
    after = sum(len(compress(member, 1)) for member in members)
    return Content(kind, is_compressed, after / before if before else 1.0)


def class_counts(
    urls: Sequence[str],
    suffix: str,
    *,
    cache: CacheFolder,
    settings: TransportSettings | None = None,
    processes: int = 1,
) -> Counter[str]:
    """How many samples have each value of a small text field, over all shards."""
    total: Counter[str] = Counter()
    count = partial(_classes_of, suffix=suffix, cache=cache, settings=settings)
    for classes in map_parallel(count, urls, processes):
        total.update(classes)
    return total


def _classes_of(
    url: str, suffix: str, cache: CacheFolder, settings: TransportSettings | None
) -> Counter[str]:
    with local_copy(url, cache, settings) as shard:
        table = TableStore(shard.cache).table_of(shard.path)
        if suffix not in table.suffixes:
            return Counter()
        number = table.suffixes.index(suffix)
        owners = np.repeat(np.arange(table.num_samples), np.diff(table.sample_starts))
        with ShardReader(shard.path, table) as reader:
            return Counter(
                reader.read(sample, suffix).strip().decode("utf-8", "replace")
                for sample in owners[table.suffix_ids == number].tolist()
            )


def preview(sample: ChosenSample, suffix: str) -> str | None:
    """The beginning of a text, or dtype and shape of an array; None for any other member."""
    if sample.sizes[suffix] > _MAX_PREVIEWED:
        return None
    data = sample.read(suffix)
    kind = file_kind(data)[0] if data else "nothing"
    if kind == "npy":
        return _layout_of(data)
    if kind != "text":
        return None
    text = data[: 4 * _MAX_LETTERS + 4].decode("utf-8", "ignore")
    return text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]}…"


def _layout_of(npy: bytes) -> str | None:
    """The dtype and the shape in the header of an .npy file; None if it cannot be read."""
    layout, file = np.lib.format, BytesIO(npy)
    try:
        is_first = layout.read_magic(file) == (1, 0)
        read = layout.read_array_header_1_0 if is_first else layout.read_array_header_2_0
        shape, _, dtype = read(file)
    except Exception:  # noqa: BLE001 numpy parses it as Python, and may raise anything at damage
        return None
    return f"{dtype} {shape}"
