"""Real evaluations on three and four ranks give the metrics of one pass over the files, exactly."""

import io
import itertools
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = [pytest.mark.ddp, pytest.mark.slow, pytest.mark.timeout(300)]

VAL = (1, 7, 0, 12, 3)  # 23 samples
TEST = (1, 0, 2)  # fewer than four ranks
CASES = [
    {"name": f"{remainder} {batch_size}", "remainder": remainder, "batch_size": batch_size}
    for remainder, batch_size in itertools.product(("balanced", "pad"), (1, 4))
]


def pass_over(paths: list[Path]) -> dict[str, float]:
    """The metrics by Python's tarfile, a sample at a time."""
    members: dict[str, dict[str, bytes]] = {}
    for path in paths:
        with tarfile.open(path) as tar:
            for member in tar:
                key, suffix = member.name.split(".")
                found: Any = tar.extractfile(member)
                members.setdefault(key, {})[suffix] = found.read()
    correct = brightness = 0
    for sample in members.values():
        value = int(np.asarray(Image.open(io.BytesIO(sample["png"])))[0, 0])
        correct += (value + (value % 3 == 0)) % 10 == int(sample["cls"])
        brightness += value
    number = np.float32(len(members))
    return {
        "accuracy": float(np.float32(correct) / number),
        "brightness": float(np.float32(brightness) / number),
        "samples": float(number),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pack_into):
    made = tmp_path_factory.mktemp("evaluation")
    pack_into(made, VAL, "val")
    pack_into(made, TEST, "test")
    return made


@pytest.fixture(scope="module", params=[3, 4], ids=lambda ranks: f"{ranks} ranks")
def told(request, folder, programs):
    """What each rank of a group returned."""
    job = {"folder": str(folder), "ranks": request.param, "cases": CASES}
    return programs.run("run_evaluation.py", job)


@pytest.mark.parametrize("case", [case["name"] for case in CASES])
@pytest.mark.parametrize("split", ["val", "test"])
def test_metrics_on_any_number_of_ranks_are_those_of_one_pass_over_the_files(
    told, folder, split, case
):
    expected = pass_over(sorted(folder.glob(f"{split}-*.tar")))
    assert [metrics[f"{split} {case}"] for metrics in told] == [expected] * len(told)


def test_the_model_is_neither_always_right_nor_always_wrong(folder):
    assert pass_over(sorted(folder.glob("val-*.tar")))["accuracy"] == float(np.float32(15 / 23))
    assert pass_over(sorted(folder.glob("test-*.tar")))["samples"] == 3.0
