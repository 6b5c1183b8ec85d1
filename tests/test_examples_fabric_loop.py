"""The loop by Fabric: each sample once, also when it is stopped and resumed on more ranks."""

import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

ROOT = Path(__file__).parents[1]


class Stopped(Exception):  # noqa: N818 no error
    """What kills a run in a test."""


class WatchedFabric(Fabric):
    """Keeps the keys of each batch that goes to the device; dies at one of them."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__(accelerator="cpu", devices=1)
        self.stop_at = stop_at
        self.train: list[list[str]] = []
        self.val: list[str] = []

    def to_device(self, obj: Any) -> Any:
        if isinstance(obj, dict) and "__weight__" in obj:
            pairs = zip(obj["__key__"], obj["__weight__"], strict=True)
            self.val += [key for key, weight in pairs if weight]
        elif isinstance(obj, dict):
            self.train.append(obj["__key__"])
            if len(self.train) == self.stop_at:
                raise Stopped
        return super().to_device(obj)


@pytest.fixture
def digits(monkeypatch, tmp_path):
    """Some shards of the quickstart, 460 and 17 samples; its folder is on the path of modules."""
    monkeypatch.setenv("HOME", str(tmp_path))  # caches lie there
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # seed_everything sets it, this takes it back
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    packed = tmp_path / "digits"
    import_module("quickstart").pack_digits(packed)
    for path in packed.glob("*/*.tar"):
        if path.name not in ("train-000000.tar", "train-000001.tar", "val-000004.tar"):
            path.unlink()
    return packed


def train_by_fabric(digits: Path, checkpoint: Path, stop_at: int | None = None) -> WatchedFabric:
    """Two epochs of the example, in this process."""
    example, fabric = import_module("fabric_loop"), WatchedFabric(stop_at)
    fabric.seed_everything(0)
    data = example.make_data(digits)
    data.num_workers = 0
    try:
        example.train(fabric, data, checkpoint, epochs=2)
    except Stopped:
        assert stop_at
    return fabric


@pytest.mark.slow
@pytest.mark.ddp
def test_the_fabric_loop_resumes_at_the_next_sample_on_one_rank_and_on_two(
    digits, tmp_path, forked_programs
):
    whole = train_by_fabric(digits, tmp_path / "whole.ckpt")
    assert len(whole.train) == 2 * 14  # 460 samples in steps of 32
    assert len({key for keys in whole.train[14:] for key in keys}) == 14 * 32
    assert len(whole.val) == len(set(whole.val)) == 17

    train_by_fabric(digits, tmp_path / "stopped.ckpt", stop_at=26)
    shutil.copy(tmp_path / "stopped.ckpt", tmp_path / "two.ckpt")
    resumed = train_by_fabric(digits, tmp_path / "stopped.ckpt")
    assert resumed.train == whole.train[14 + 10 :]  # from the last checkpoint before it stopped
    ends = [torch.load(tmp_path / f"{name}.ckpt")["model"] for name in ("whole", "stopped")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])

    command = [ROOT / "examples/fabric_loop.py", "--folder", digits, "--devices", "2"]
    command += ["--checkpoint", tmp_path / "two.ckpt", "--epochs", "2"]
    output, statuses = forked_programs.run(command, tmp_path, ranks=2)
    assert statuses == [0, 0], output
    assert "val: 17 samples" in output
