"""python tests/ddp_kill/run_fit.py JOB.json: a fit as a user starts it, on ranks.

What a rank has to say goes to the job's folder: `blocked` when it waits to be killed, `end-RANK`
when the fit is over.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    from ledger import fit  # only here: workers import this file, and need no Lightning

    fit(Path(sys.argv[1]))
