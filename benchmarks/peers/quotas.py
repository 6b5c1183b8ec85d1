"""How evenly mixtures of two components are composed: `python -m benchmarks.peers.quotas --help`.

Two components of 3,072 and 1,024 samples are mixed 3 to 1, in batches of 64 on one rank without
workers. Printed is, over the first 60 batches, the mean of the small component's count, of which 16
are wanted, and its standard deviation. Each loader mixes as its documentation says: LitData and
MosaicML Streaming stratified, Megatron-Energon by its blend, webdataset by RandomMix, ours in
rounds of a batch. Each is run by an interpreter that has it, as `benchmarks.peers` installs them
below its `--folder`.
"""

import argparse
import json
import statistics
import tempfile
from itertools import islice
from pathlib import Path

from benchmarks.peers.loaders.mixtures import MIXTURES, Part

BATCHES = 60


def counts_of(name: str, folder: Path) -> list[int]:
    """Samples of the small component in each of the first batches of a loader."""
    MIXTURES[name].prepare(folder)
    batches = islice(MIXTURES[name].open(Part(folder)).batches, BATCHES)
    return [sum(sample.startswith("small") for sample in batch) for batch in batches]


def main() -> None:
    """Measure one loader, in the interpreter that has it, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("loader", choices=MIXTURES)
    name = parser.parse_args().loader
    with tempfile.TemporaryDirectory() as folder:
        counts = counts_of(name, Path(folder))
    deviation = statistics.pstdev(counts)
    print(json.dumps({
        "loader": name, "batches": len(counts), "mean": round(statistics.fmean(counts), 2),
        "standard_deviation": round(deviation, 2), "least": min(counts), "most": max(counts),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
