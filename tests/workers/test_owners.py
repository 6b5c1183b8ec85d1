"""The programs that worker processes run end with the process that owns the workers."""

import sys

import psutil
import pytest
from waiting import is_alive, wait_for

pytestmark = pytest.mark.ddp

OWNER = """
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.recipe import Recipe
from lightning_shards.readers.stream import StreamSource
from lightning_shards.samples.fields import Field
from lightning_shards.shards.index import ShardIndex
from lightning_shards.workers.processes import ProcessPool

source = StreamSource(
    index=ShardIndex(("pipe:sleep 1000",), None), epochs=EpochSchedule(100, 2, "drop"), seed=0,
    sampling="resampled", recipes=(Recipe((Field("label", ("cls",)),)),),
)
next(ProcessPool(2, start_method="fork").start(source, Place(), Cursor()))
"""


@pytest.mark.slow
def test_no_program_of_a_pipe_outlives_the_owner(start_program, tmp_path):
    with start_program([sys.executable, "-c", OWNER], tmp_path) as owner:

        def below():
            return psutil.Process(owner.pid).children(recursive=True)

        def is_reading():
            return [child.name() for child in below()].count("sleep") == 2

        assert wait_for(is_reading, within_s=60)
        descendants = below()
        owner.kill()
        owner.wait(timeout=30)
        _, left = psutil.wait_procs(descendants, timeout=5)
        assert not any(map(is_alive, left))
