"""Errors of the data: one line and an exit status, or with --traceback the error itself."""

import sys
from pathlib import Path

import pytest
import yaml

from lightning_shards import SampleError, TransformError
from lightning_shards.__main__ import main

pytestmark = [
    # lightning/pytorch/utilities/_pytree.py, torch 2.13
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),  # BoringModel's
]

CASES = {
    "label": ({"fields": {"label": "png"}, "decode": {"label": "int"}}, SampleError),
    "transform": ({"transforms": {"label": "faulty.refuse"}}, TransformError),
}


@pytest.fixture
def fit(tmp_path, config, pack_shards, monkeypatch):
    """Fits on data with one fault."""
    path = Path(*pack_shards([4]))
    (tmp_path / "faulty.py").write_text("def refuse(label):\n    raise RuntimeError('no')\n")
    train = {"urls": str(path), "sampling": "sequential", "batch_size": 2}
    config["data"] |= {"train": train, "val": None, "fields": {"label": "cls"}, "decode": None}
    config["data"]["loader"] = {"cache_dir": str(tmp_path / "cache")}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def fitted(case, *options):
        config["data"] |= CASES[case][0]
        Path("experiment.yaml").write_text(yaml.safe_dump(config))
        common = ["fit", "--config=experiment.yaml", "--model=BoringModel"]
        monkeypatch.setattr(sys, "argv", ["lightning-shards", *common, *options])
        main()

    return fitted


@pytest.mark.parametrize(("case", "workers"), [("label", 0), ("transform", 1)])
def test_bad_data_are_one_line(fit, case, workers, capsys):
    with pytest.raises(SystemExit) as ended:
        fit(case, f"--data.num_workers={workers}")
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert not any("Traceback" in line for line in lines)
    assert lines[-1].startswith("error: ")
    assert ".tar" in lines[-1]
    assert lines[-1].endswith("(--traceback shows where)")


@pytest.mark.parametrize("case", CASES)
def test_the_error_itself_is_raised_if_that_is_wished(fit, case):
    with pytest.raises(CASES[case][1]):
        fit(case, "--traceback")
