"""What one fresh process is asked to do."""

from dataclasses import dataclass
from pathlib import Path

BATCH = 64
NPY_HEADER = 128
"""Bytes of an .npy file before its numbers, as numpy writes it."""


@dataclass(frozen=True)
class Data:
    """One data set.

    Attributes:
        name: IMG, SMALL or TOK.
        samples: how many, in all shards.
        shards: how many.
    """

    name: str
    samples: int
    shards: int

    @property
    def steps(self) -> int:
        """Whole batches of the usual size in an epoch of one process."""
        return self.samples // BATCH


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        action: the function that does it, as "package.module:function".
        data: what is read.
        folder: where all data sets lie.
        peer: a module of `loaders`.
        loader: one of its `LOADERS`.
        workers: processes or threads; 0 for the process itself.
        seconds: how long batches are counted.
        position: batches of the epoch that were trained before.
        batch: samples of a batch.
    """

    action: str
    data: Data
    folder: str
    peer: str = ""
    loader: str = ""
    workers: int = 2
    seconds: float = 1.5
    position: int = 0
    batch: int = BATCH

    @property
    def shards(self) -> list[str]:
        """The tars, in order."""
        return [str(self.home / "tar" / f"{n:04d}.tar") for n in range(self.data.shards)]

    @property
    def home(self) -> Path:
        """The folder of the data set."""
        return Path(self.folder) / f"{self.data.name}-{self.data.samples}"

    @property
    def own(self) -> Path:
        """The folder of what the peer makes of the data set."""
        return self.home / self.peer

    @property
    def state_file(self) -> Path:
        """Where a loader's state at `position` is kept."""
        return self.own / f"{self.loader}-{self.workers}-{self.position}.state"

    @property
    def is_images(self) -> bool:
        """Whether the samples are images with a label, and not arrays."""
        return self.data.name == "IMG"
