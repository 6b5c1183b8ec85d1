"""Errors of the data: one line and an exit status, or with --traceback the error itself."""

import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_shards import DamagedShardError, SampleError, TransformError
from lightning_shards.__main__ import main

pytestmark = [
    # lightning/pytorch/utilities/_pytree.py, torch 2.13
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),  # BoringModel's
]


def write(path: Path, labels: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number, label in enumerate(labels):
            info = tarfile.TarInfo(f"{number}.cls")
            info.size = len(label)
            tar.addfile(info, io.BytesIO(label.encode()))


@pytest.fixture
def fit(tmp_path, config, monkeypatch, capsys):
    """Fits on data with one fault: exit status and lines of stderr."""
    path = tmp_path / "shards" / "0.tar"
    (tmp_path / "faulty.py").write_text("def refuse(label):\n    raise RuntimeError('no')\n")
    shards: dict[str, Any] = {"urls": str(path), "sampling": "sequential", "batch_size": 2}
    config["data"] |= {"train": shards, "val": None, "fields": {"label": "cls"}, "decode": None}
    config["data"]["loader"] = {"cache_dir": str(tmp_path / "cache")}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def fitted(case, *options):
        write(path, ["bag" if case == "label" else "1", "2", "3", "4"])
        if case == "damage":
            data = bytearray(path.read_bytes())
            data[1024] ^= 1  # a bit of the header of the second sample
            path.write_bytes(data)
        if case == "transform":
            config["data"]["transforms"] = {"label": "faulty.refuse"}
        Path("experiment.yaml").write_text(yaml.safe_dump(config))
        common = ["fit", "--config=experiment.yaml", "--model=BoringModel"]
        monkeypatch.setattr(sys, "argv", ["lightning-shards", *common, *options])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().err.splitlines()

    return fitted


@pytest.mark.parametrize("case", ["label", "damage", "transform"])
@pytest.mark.parametrize("workers", ["0", "1"])
def test_bad_data_are_one_line(fit, case, workers):
    status, lines = fit(case, f"--data.num_workers={workers}")
    assert status == 2
    assert not any("Traceback" in line for line in lines)
    assert lines[-1].startswith("error: ")
    assert "0.tar" in lines[-1]
    assert lines[-1].endswith("(--traceback shows where)")


@pytest.mark.parametrize(
    ("case", "error"),
    [("label", SampleError), ("damage", DamagedShardError), ("transform", TransformError)],
)
def test_the_error_itself_is_raised_if_that_is_wished(fit, case, error):
    with pytest.raises(error):
        fit(case, "--traceback")
