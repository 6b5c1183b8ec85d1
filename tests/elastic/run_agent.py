"""python tests/elastic/run_agent.py OPTIONS_OF_TORCHRUN -- OPTIONS_OF_FIT: an agent of torchrun.

It differs from torchrun in that it forks its ranks, which then need not import Lightning.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

from lightning_utilities.core.rank_zero import rank_zero_only
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from lightning_shards import ShardCLI


def train(options: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # not the agent's own handlers
    rank_zero_only.rank = int(os.environ["RANK"])  # which it takes when imported
    ShardCLI(args=options)


if __name__ == "__main__":
    tempfile.tempdir = str(Path.cwd())  # for what is left of an agent that is killed
    between = sys.argv.index("--")
    config, _, _ = config_from_args(parse_args([*sys.argv[1:between], "nothing.py"]))
    config.start_method = "fork"
    elastic_launch(config, train)(sys.argv[between + 1 :])
