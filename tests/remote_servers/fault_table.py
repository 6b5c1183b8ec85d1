"""What can go wrong while a range is fetched, and what is owed then: one table for all readers.

A fault strikes when some bytes of a range have arrived. One of the answer strikes in the request
that resumes there, and so the first answer is cut at that place.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from fault_server import Fault, FaultServer

from lightning_shards.errors import (
    FileAccessError,
    IndexMismatchError,
    ShardError,
    ShardNotFoundError,
    StorageError,
)

SCHEMES = ("http", "https", "s3")

READERS = ("indexed", "stream")
"""What reads: ranges that are known beforehand, or an object from its start to its end."""

POSITIONS = ("begin", "second byte", "tar header", "boundary", "data", "last byte")


def bytes_before(position: str, size: int) -> int:
    """How many bytes have arrived of a range of that size, which may be a tar file."""
    fixed = {"begin": 0, "second byte": 1, "tar header": 300, "boundary": 512}
    return {**fixed, "data": size // 2 + 7, "last byte": size - 1}[position]


class Owed(NamedTuple):
    """The error that a fault becomes.

    Attributes:
        error: Its class, and no class above or below that.
        message: How its message reads, as a regular expression.
    """

    error: type[ShardError]
    message: str


@dataclass(frozen=True)
class FaultRow:
    """One fault, and what is owed.

    Attributes:
        name: What goes wrong.
        faults: What the server does with the requests from there on; later ones are answered.
        owed: The error; None: the right bytes.
        owed_over_s3: The same where obstore reads, if that is another error.
        is_in_body: The first one is of the bytes of an answer, and strikes behind the position.
        stays: The last one is that of all further requests as well.
    """

    name: str
    faults: tuple[Fault, ...]
    owed: Owed | None = None
    owed_over_s3: Owed | None = None
    is_in_body: bool = False
    stays: bool = False

    def owed_over(self, scheme: str) -> Owed | None:
        """The error that is owed over this scheme; None: the right bytes."""
        is_other = scheme == "s3" and self.owed_over_s3 is not None
        return self.owed_over_s3 if is_other else self.owed


PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"
REPLACED = Owed(IndexMismatchError, "another version")
STALLED = Owed(StorageError, r"stalled|broke")
UNTOLD = Owed(StorageError, r"refuses, or the connection broke .* \(try \d+ of 10\); check the")
"""What is not told by a status: obstore has one class of errors for all of it."""

ROWS = (
    FaultRow("500, 502, 504, 408 in turn", tuple(Fault("status", n) for n in (500, 502, 504, 408))),
    FaultRow("429", (Fault("status", 429),)),
    FaultRow("503 with Retry-After", (Fault("status", 503, (("Retry-After", "1"),)),)),
    FaultRow(
        "503 for ever",
        (Fault("status", 503),),
        Owed(StorageError, r"503 Service Unavailable \(try \d+ of 10\); check"),
        UNTOLD,
        stays=True,
    ),
    FaultRow("401 once", (Fault("status", 401),)),
    FaultRow(
        "403 for ever",
        (Fault("status", 403),),
        Owed(FileAccessError, "403 Forbidden, also with credentials that were looked up again"),
        stays=True,
    ),
    FaultRow("404", (Fault("status", 404),), Owed(ShardNotFoundError, "404 Not Found"), stays=True),
    FaultRow("replaced", (Fault("replace"),), REPLACED),
    FaultRow("a shorter range", (Fault("short", 7),)),
    FaultRow("reset before the answer", (Fault("reset"),)),
    FaultRow("silent", (Fault("silent", 60),)),
    FaultRow("cut", (Fault("cut"),), is_in_body=True),
    FaultRow("cut by a reset", (Fault("cut_reset"),), is_in_body=True),
    FaultRow("stall", (Fault("stall"),), is_in_body=True),
    FaultRow("stall for ever", (Fault("stall", 0),), STALLED, is_in_body=True, stays=True),
    FaultRow("drip", (Fault("drip", 0.01),)),
    FaultRow("another range", (Fault("shifted", 5),)),
    FaultRow("wrong Content-Range", (Fault("mislabelled", 5),)),
    FaultRow("more bytes than the range", (Fault("longer"),)),
    FaultRow(
        "all of the object",
        (Fault("whole"),),
        Owed(StorageError, r"all of the object, .* use a server that knows ranges"),
        UNTOLD,
        stays=True,
    ),
    FaultRow(
        "a page for people",
        (Fault("page", PAGE),),
        Owed(StorageError, r"page for people .* wants a login"),
        Owed(StorageError, r"neither ETag nor Last-Modified|the server refuses"),
        stays=True,
    ),
    FaultRow("redirect to another host", (Fault("elsewhere"),)),
    FaultRow(
        "redirects without end",
        (Fault("redirect", "/loop"),),
        Owed(StorageError, "redirects more than 5 times"),
        UNTOLD,
        stays=True,
    ),
    FaultRow(
        "redirect to a file",
        (Fault("redirect", "file:///etc/passwd"),),
        Owed(StorageError, "redirects to what is no http"),
        UNTOLD,
        stays=True,
    ),
)


def strike(server: FaultServer, row: FaultRow, position: int, sound: int = 0) -> None:
    """Let a fault strike when that many bytes have arrived of the range that is read next.

    So many sound answers come before.
    """
    first, *others = row.faults
    if row.is_in_body:
        server.faults = [first._replace(value=position), *others]
    else:
        server.faults = [*[Fault("cut", position)] * (position > 0), *row.faults]
    server.faults[:0] = [None] * sound
    if row.stays:
        server.always = row.faults[-1]


def drawn_positions(row: FaultRow, scheme: str, reader: str) -> list[str]:
    """A fifth of all cells, drawn by fixed seeds: one or two positions for each other choice."""
    num_pairs = len(ROWS) * len(SCHEMES)
    draws = np.random.default_rng(READERS.index(reader))
    orders = draws.permuted(np.tile(np.arange(len(POSITIONS)), (num_pairs, 1)), axis=1)
    has_two = draws.permutation(num_pairs) < round(num_pairs * len(POSITIONS) / 5) - num_pairs
    pair = ROWS.index(row) * len(SCHEMES) + SCHEMES.index(scheme)
    return [POSITIONS[number] for number in orders[pair][: 1 + has_two[pair]]]
