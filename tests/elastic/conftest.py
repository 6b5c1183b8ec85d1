"""A run in the folder of a test, and its launchers."""

from contextlib import ExitStack

import pytest
from elastic_runs import TRAIN, VAL, Launchers


@pytest.fixture
def launchers_of(tmp_path, pack_into, forked_programs):
    """Makes a run with its shards, which waits at these stops, and what launches it.

    Whatever is left of the launchers is killed after the test.
    """
    with ExitStack() as stack:

        def make(*stops):
            pack_into(tmp_path, TRAIN, "train")
            pack_into(tmp_path, VAL, "val")
            return Launchers(tmp_path, stops, forked_programs, stack)

        yield make
