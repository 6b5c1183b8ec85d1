"""What people look at: single samples of local and remote shards, counts of classes, a sheet.

Where a member table tells where the members lie, no other bytes are read. A remote shard without
one is streamed up to the last sample that is wanted.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from io import BytesIO
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.dataprep.survey import ShardSurvey, describe_table, find_odd_headers
from lightning_shards.errors import ConfigError
from lightning_shards.samples.images import MAX_PIXELS, decode_rgb, require_backend
from lightning_shards.shards.index import load_index
from lightning_shards.shards.members import MemberTable, ShardReader
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import Storages, has_ranges
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.tar.tar_bytes import stream_samples
from lightning_shards.shards.urls import is_local

_GAP: Final = 12  # pixels between neighbours, and around the sheet
_FONT_SIZE: Final = 12
_LINE_HEIGHT: Final = 16
_PAPER, _BAD = "white", "#ffb0b0"
_INKS: Final = ("#555555", "#000000")  # of the key, and of the label
_MAX_PREVIEWED: Final = 1 << 20  # bytes: a larger member is not read to show its beginning
_MAX_LETTERS: Final = 400


class ChosenSample(NamedTuple):
    """One sample.

    Attributes:
        key: Its key.
        sizes: Bytes of its members, by suffix.
        read: Gives the data of a member, by suffix, while its shard is open.
    """

    key: str
    sizes: Mapping[str, int]
    read: Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class TabledShards:
    """Local shards, and remote ones that have member tables beside them; it can be pickled."""

    cache: CacheFolder
    storages: Storages

    def table_of(self, url: str) -> MemberTable:
        """The member table of a shard; errors as of `TableStore.table_of`."""
        return TableStore(self.cache, storages=self.storages).table_of(url)

    def look(self, url: str) -> ShardSurvey:
        """The survey of a shard by its table; of a local one also by its odd headers."""
        table = self.table_of(url)
        seen = describe_table(url, table)
        if is_local(url):
            seen.findings += find_odd_headers(url, table)
        return seen

    def reader(self, url: str) -> ShardReader:
        """An open shard."""
        return ShardReader(url, self.table_of(url), self.storages.of(url))

    def classes_of(self, url: str, suffix: str) -> Counter[str]:
        """How many samples of a shard have each value of a small text field."""
        with self.reader(url) as reader:
            samples = np.flatnonzero(reader.table.members_with([suffix]) >= 0).tolist()
            return Counter(
                reader.read(sample, suffix).strip().decode("utf-8", "replace") for sample in samples
            )

    def samples_of(self, url: str, numbers: Sequence[int]) -> Iterator[ChosenSample]:
        """The samples of these ascending numbers; fewer if a shard without a table has fewer."""
        tables = TableStore(self.cache, storages=self.storages)
        if is_local(url) or (has_ranges(url) and tables.is_beside(url)):
            with self.reader(url) as reader:
                yield from (_by_table(reader, number) for number in numbers)
            return
        with self.storages.of(url).open_stream(url) as stream:
            every = islice(stream_samples(stream, url), numbers[-1] + 1)
            wanted = set(numbers)
            yield from (_of_stream(each) for number, each in enumerate(every) if number in wanted)

    def choose(
        self, urls: Sequence[str], num: int, seed: int | None
    ) -> tuple[dict[str, list[int]], bool]:
        """The numbers of the samples to show, by shard, and whether all samples were counted.

        They are evenly spaced, or drawn without repeats. Where no file counts the samples of a
        remote shard, they are the first ones of shards that are chosen so.
        """
        counts = load_index(urls, cache=self.cache, storages=self.storages).counts
        if counts is None:
            shards = _numbers(len(urls), min(num, len(urls)), seed)
            least, more = divmod(num, len(shards))
            firsts = {urls[shard]: least + (rank < more) for rank, shard in enumerate(shards)}
            return {url: list(range(first)) for url, first in firsts.items()}, False
        total, stops = int(counts.sum()), np.cumsum(counts)
        chosen: dict[str, list[int]] = {}
        for number in _numbers(total, min(num, total), seed):
            shard = int(np.searchsorted(stops, number, side="right"))
            start = int(stops[shard] - counts[shard])
            chosen.setdefault(urls[shard], []).append(number - start)
        return chosen, True


def class_counts(
    urls: Sequence[str], suffix: str, tables: TabledShards, *, processes: int = 1
) -> Counter[str]:
    """How many samples have each value of a small text field, over all shards."""
    total: Counter[str] = Counter()
    for classes in map_parallel(partial(tables.classes_of, suffix=suffix), urls, processes):
        total.update(classes)
    return total


def _by_table(reader: ShardReader, number: int) -> ChosenSample:
    table = reader.table
    extents = {suffix: table.find(number, suffix) for suffix in table.suffixes_of(number)}
    sizes = {suffix: extent[1] for suffix, extent in extents.items() if extent}
    return ChosenSample(table.key(number), sizes, partial(reader.read, number))


def _of_stream(sample: dict[str, bytes | str]) -> ChosenSample:
    members = {suffix: data for suffix, data in sample.items() if isinstance(data, bytes)}
    sizes = {suffix: len(data) for suffix, data in members.items()}
    return ChosenSample(str(sample["__key__"]), sizes, members.__getitem__)


def _numbers(total: int, num: int, seed: int | None) -> list[int]:
    """Numbers below `total`, in order."""
    if seed is None:
        return [number * total // num for number in range(num)]
    drawn = np.random.default_rng(seed)
    chosen: set[int] = set()  # a permutation of all numbers could be too large
    while len(chosen) < num:
        chosen.add(int(drawn.integers(total)))
    return sorted(chosen)


def preview(sample: ChosenSample, suffix: str) -> str | None:
    """The beginning of a text; None for any other member."""
    if sample.sizes[suffix] > _MAX_PREVIEWED:
        return None
    with suppress(UnicodeDecodeError):
        text = " ".join(sample.read(suffix).decode().split())
        return text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]}…"
    return None


def make_thumbnail(data: bytes, size: int) -> Any:
    """An image file as a `PIL.Image.Image` no larger than `size`; None if it cannot be decoded.

    Pixels are those that training gets. A small image is enlarged by a whole factor, so that each
    of its pixels stays a square of one colour.
    """
    image_module: Any = import_module("PIL.Image")
    try:
        image = image_module.fromarray(decode_rgb(data).transpose(1, 2, 0))
    except Exception:  # noqa: BLE001 bytes of any origin make decoders raise anything
        return None
    image.thumbnail((size, size))
    factor = max(1, size // max(image.size))
    wanted = image.width * factor, image.height * factor
    return image if factor == 1 else image.resize(wanted, image_module.Resampling.NEAREST)


def png_of(image: Any) -> bytes:
    """A `PIL.Image.Image` as a PNG."""
    out = BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def contact_sheet(
    images: Sequence[bytes], captions: Sequence[tuple[str, str]], *, columns: int, size: int
) -> bytes:
    """A PNG with the images in rows; an image that cannot be decoded is a red box.

    Args:
        images: The bytes of image files, at least one.
        captions: Key and label of each image, shortened to the width of a column.
        columns: Most images in a row.
        size: Height and width of the space of an image, in pixels.

    Raises:
        ConfigError: Pillow is not installed, or the sheet would be too large to be opened.
    """
    require_backend("pillow")
    columns = min(columns, len(images))
    cell = size + _GAP, size + len(_INKS) * _LINE_HEIGHT + _GAP
    width, height = columns * cell[0] + _GAP, -(-len(images) // columns) * cell[1] + _GAP
    if width * height > MAX_PIXELS:
        raise ConfigError(
            f"a sheet of {len(images)} samples of {size} pixels would have {width} x {height} "
            f"pixels, more than {MAX_PIXELS}, and few programs open such an image; lower --samples "
            "or --size"
        )
    sheet: Any = import_module("PIL.Image").new("RGB", (width, height), _PAPER)
    draw: Any = import_module("PIL.ImageDraw").Draw(sheet)
    font: Any = import_module("PIL.ImageFont").load_default(_FONT_SIZE)
    for number, (data, caption) in enumerate(zip(images, captions, strict=True)):
        row, column = divmod(number, columns)
        left, top = _GAP + column * cell[0], _GAP + row * cell[1]
        image = make_thumbnail(data, size)
        if image is None:
            draw.rectangle((left, top, left + size - 1, top + size - 1), fill=_BAD)
        else:
            sheet.paste(image, (left + (size - image.width) // 2, top + (size - image.height) // 2))
        for line, (text, ink) in enumerate(zip(caption, _INKS, strict=True)):
            shown = _shortened(text, lambda shown: draw.textlength(shown, font=font) <= size)
            place = left, top + size + 2 + line * _LINE_HEIGHT
            draw.text(place, shown, fill=ink, font=font)
    return png_of(sheet)


def _shortened(text: str, fits: Callable[[str], bool]) -> str:
    """The end of a text, as keys differ there, with question marks for letters of no font."""
    line = " ".join(text.split()).encode("latin-1", "replace").decode("latin-1")
    shown = "".join(letter if letter.isprintable() else "?" for letter in line)
    while shown and not fits(shown):
        shown = shown[1:]
    return shown
