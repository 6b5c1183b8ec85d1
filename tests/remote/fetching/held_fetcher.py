"""Objects, their pieces, and what a fetcher reads of them."""

import random

from held_transport import MIB, VERSION
from waiting import wait_for

from lightning_shards.remote.pieces import Piece

DATA = random.Random(1).randbytes(64_000)
LARGE = random.Random(2).randbytes(20 * MIB)
PIECES = [Piece("u", VERSION, begin, begin + 8000) for begin in range(0, 64_000, 8000)]
WITHIN_S = 10


def bytes_read(fetcher, reads):
    """What the ranges of one object hold, those of no or too few bytes cut."""
    (counts,) = fetcher.read([reads])
    place, found = 0, []
    for start, stop, count in zip(reads.starts, reads.stops, counts, strict=True):
        found.append(bytes(reads.into[place : place + count]))
        place += stop - start
    return found


def is_fetched(fetcher, number):
    """Whether so many requests were made, and nothing is fetched ahead any more."""
    asked = fetcher._transport.asked
    return wait_for(lambda: len(asked) == number and not fetcher._under_way, WITHIN_S)
