"""The orders that `pack` and `reshard` give for fixed seeds, as they were when they were published.

A run that was begun by one release goes on under the next only while these orders stay. The golden
file was computed by the first release; it is never made anew.
"""

import json
from pathlib import Path

import pytest

from lightning_shards.dataprep.packing import InputSample, Packing, assign, inline
from lightning_shards.shards.tar.tar_bytes import read_samples
from lightning_shards.tools import pack, reshard

GOLDEN = json.loads(Path(__file__).with_name("golden_orders.json").read_text())
KEYS = [f"{number:02d}" for number in range(24)]


SAMPLES = [InputSample(key, (inline("cls", b"1"),)) for key in KEYS]


def keys_of(folder):
    """The keys in a folder of shards, in order."""
    paths = sorted(folder.glob("**/*.tar"))
    return [sample["__key__"] for path in paths for sample in read_samples(str(path))]


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_shuffle_gives_the_golden_order(seed):
    (numbers,) = assign(SAMPLES, Packing(order="shuffled", seed=seed))[""]
    assert numbers.tolist() == GOLDEN["shuffled"][str(seed)]


def test_split_takes_the_golden_samples():
    splits = assign(SAMPLES, Packing(order="shuffled", seed=1, val_fraction=0.3))
    assert {name: shards[0].tolist() for name, shards in splits.items()} == GOLDEN["split"]


def test_tools_write_the_golden_order(tmp_path, capsys):
    (tmp_path / "files").mkdir()
    for key in KEYS:
        (tmp_path / "files" / f"{key}.cls").write_bytes(b"1")
    common = ["--order", "shuffled", "--seed", "1", "--processes", "1"]
    common += ["--cache-dir", str(tmp_path / "cache"), "--out"]
    pack.main([str(tmp_path / "files"), "--no-classes", *common, str(tmp_path / "packed")])
    reshard.main([str(tmp_path / "packed" / "*.tar"), *common, str(tmp_path / "again")])
    capsys.readouterr()
    expected = [KEYS[number] for number in GOLDEN["shuffled"]["1"]]
    assert keys_of(tmp_path / "packed") == expected
    assert keys_of(tmp_path / "again") == expected
