"""What a batch holds, as a digest of each of its rows."""

from hashlib import sha256

import numpy as np


def rows_of(batch):
    """The same for the same samples, wherever they are read from and whoever shares them out."""
    names = sorted(name for name in batch if name != "__url__")
    return [
        sha256(b"".join(np.asarray(batch[name][row]).tobytes() for name in names)).hexdigest()[:16]
        for row in range(len(batch["label"]))
    ]
