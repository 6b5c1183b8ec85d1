"""The blocks that a tar is made of: each header takes one, and data is filled up to whole ones."""

from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

BLOCK: Final = 512

_Size = TypeVar("_Size", int, NDArray[np.int64])


def up_to_block(size: _Size) -> _Size:
    """The bytes of the blocks that this many bytes fill, or begin to fill.

    >>> up_to_block(0), up_to_block(1), up_to_block(512), up_to_block(513)
    (0, 512, 512, 1024)
    """
    return size + -size % BLOCK
