"""The orders that `pack` and `reshard` give for fixed seeds, as they were when they were published.

A run that was begun by one release goes on under the next only while these orders stay. The golden
file was computed by the first release; it is never made anew.
"""

import json
from pathlib import Path

import pytest

from lightning_shards.dataprep.packing import InputSample, Packing, assign, inline

GOLDEN = json.loads(Path(__file__).with_name("golden_orders.json").read_text())
KEYS = [f"{number:02d}" for number in range(24)]


SAMPLES = [InputSample(key, (inline("cls", b"1"),)) for key in KEYS]


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_shuffle_gives_the_golden_order(seed):
    (numbers,) = assign(SAMPLES, Packing(order="shuffled", seed=seed))[""]
    assert numbers.tolist() == GOLDEN["shuffled"][str(seed)]


def test_split_takes_the_golden_samples():
    splits = assign(SAMPLES, Packing(order="shuffled", seed=1, val_fraction=0.3))
    assert {name: shards[0].tolist() for name, shards in splits.items()} == GOLDEN["split"]
