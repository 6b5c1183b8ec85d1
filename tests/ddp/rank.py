"""python tests/ddp/rank.py FOLDER: one rank; runs the cases in FOLDER/cases.json one by one.

Each case is a `fit` of its own. What this rank saw goes to FOLDER/CASE-RANK.jsonl, a record a line.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    from fits import fit_all  # only here: spawned workers import this file, and need no Lightning

    fit_all(Path(sys.argv[1]))
