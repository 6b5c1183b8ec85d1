"""What people look at: single samples of local and remote shards, counts of classes, a sheet.

Member tables tell where the members lie, and no other bytes are read.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from typing import Any, Final

import numpy as np

from lightning_shards.dataprep.survey import ShardSurvey, describe_table
from lightning_shards.samples.images import decode_rgb, require_backend
from lightning_shards.shards.members import MemberTable, ShardReader
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore

_COLUMNS: Final = 8  # of the sheet, at most
_PIXELS: Final = 160  # largest height and width of an image
_GAP: Final = 12  # pixels between neighbours, and around the sheet
_FONT_SIZE: Final = 12
_LINE_HEIGHT: Final = 16
_PAPER, _BAD = "white", "#ffb0b0"
_INKS: Final = ("#555555", "#000000")  # of the key, and of the label
_MAX_LETTERS: Final = 22  # of a line


@dataclass(frozen=True, slots=True)
class TabledShards:
    """Local shards, and remote ones that have member tables beside them; it can be pickled."""

    cache: CacheFolder
    storages: Storages

    def table_of(self, url: str) -> MemberTable:
        """The member table of a shard; errors as of `TableStore.table_of`."""
        return TableStore(self.cache, storages=self.storages, takes_split=True).table_of(url)

    def look(self, url: str) -> ShardSurvey:
        """The survey of a shard by its table."""
        return describe_table(url, self.table_of(url))

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


Picture = tuple[bytes, str, str]
"""An image file, and its caption: key and label."""


def contact_sheet(pictures: Sequence[Picture]) -> bytes:
    """A PNG with the pictures in rows, at least one; what cannot be decoded is a red box.

    Of a caption the ends of its lines are shown, as keys differ there.

    Raises:
        ConfigError: Pillow is not installed.
    """
    require_backend("pillow")
    columns = min(_COLUMNS, len(pictures))
    cell = _PIXELS + _GAP, _PIXELS + len(_INKS) * _LINE_HEIGHT + _GAP
    size = columns * cell[0] + _GAP, -(-len(pictures) // columns) * cell[1] + _GAP
    image_module: Any = import_module("PIL.Image")
    sheet = image_module.new("RGB", size, _PAPER)
    draw: Any = import_module("PIL.ImageDraw").Draw(sheet)
    font: Any = import_module("PIL.ImageFont").load_default(_FONT_SIZE)
    for number, (data, *caption) in enumerate(pictures):
        row, column = divmod(number, columns)
        left, top = _GAP + column * cell[0], _GAP + row * cell[1]
        try:
            image = _fitted(data)
        except Exception:  # noqa: BLE001 bytes of any origin make decoders raise anything
            image = image_module.new("RGB", (_PIXELS, _PIXELS), _BAD)
        sheet.paste(image, (left, top))
        for line, (text, ink) in enumerate(zip(caption, _INKS, strict=True)):
            last = " ".join(text.split())[-_MAX_LETTERS:]
            place = left, top + _PIXELS + 2 + line * _LINE_HEIGHT
            draw.text(place, last, fill=ink, font=font)
    out = BytesIO()
    sheet.save(out, "PNG")
    return out.getvalue()


def _fitted(data: bytes) -> Any:
    """A `PIL.Image.Image` of the pixels that training gets, in the middle of its place."""
    image_module: Any = import_module("PIL.Image")
    image = image_module.fromarray(decode_rgb(data).transpose(1, 2, 0))
    is_small = max(image.size) < _PIXELS  # enlarged, its pixels stay sharp
    kind = image_module.Resampling.NEAREST if is_small else image_module.Resampling.BICUBIC
    return import_module("PIL.ImageOps").pad(image, (_PIXELS, _PIXELS), kind, _PAPER)
