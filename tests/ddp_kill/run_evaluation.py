"""python tests/ddp_kill/run_evaluation.py JOB.json: evaluations by the ranks that Lightning starts.

Each rank tells, in `end-RANK.json` in the job's folder, what `trainer.validate` and `trainer.test`
returned in each of the job's cases.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    from classifier import evaluate  # only here: workers import this file, and need no Lightning

    evaluate(Path(sys.argv[1]))
