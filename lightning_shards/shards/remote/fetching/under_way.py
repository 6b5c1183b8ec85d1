"""Pieces that threads of this process fetch at the moment, for batches that may wait for them."""

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from lightning_shards.shards.remote.cache.piece_files import OpenPiece
from lightning_shards.shards.remote.fetching.segments import Segment


@dataclass
class UnderWay:
    """A piece that a thread of this process fetches.

    Attributes:
        began: When.
        opened: The piece, once it is there.
        ended: Set when it is there or was given up.
    """

    began: float
    opened: OpenPiece | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class Coming(NamedTuple):
    """What is to come with a piece that is under way, and until when it is waited for."""

    under_way: UnderWay
    segments: list[Segment]
    until: float
