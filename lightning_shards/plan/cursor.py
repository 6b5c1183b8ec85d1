"""The cursor: the only progress there is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the whole job has come.

    Attributes:
        epoch: Number of the epoch, from 0.
        samples: Samples of **this epoch** that the whole job has trained, repeats not counted.
    """

    epoch: int = 0
    samples: int = 0
