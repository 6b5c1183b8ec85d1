"""The examples of the seams run, are short, and show what they are for."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
PRINTED = {
    "dict_storage": r"192 samples from 4 shards\n",
    "synthetic_source": r"12 steps, the last one of labels \[8, 9, 0, 1, 2, 3, 4, 5\]\n",
    "thread_pool": r"12 steps of 96 samples\n",
}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_of_a_seam_runs(name, tmp_path, forked_programs):
    output, statuses = forked_programs.run([FOLDER / f"{name}.py"], tmp_path)
    assert statuses == [0], output
    assert re.fullmatch(PRINTED[name], output)
