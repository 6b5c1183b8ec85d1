"""Every file in examples/ runs; the quickstart keeps what it promises."""

import json
import re
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.ddp]

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py"))
SAID = {
    "audio": [r"instruments recognised: (7[6-9]|[89].|100)%"],  # one in two by chance
    "audio_whole": [r"recordings recognised: (7[6-9]|[89].|100)%"],
    "batch_alike": [  # as docs/sampling.md says
        r"notes: padding is 40\.8% of a batch, 0\.9% with",
        r"tokens: padding is 67\.6% of a batch, 4\.7% with",
    ],
    "dict_storage": [r"^192 samples from 4 shards\n$"],
    "experiments each_once data.train.batch_size=8 data.num_workers=0 trainer.max_epochs=1": [
        r"1,500 samples from 7 shards, shuffled by the indexed reader, 187 steps",
        r"val accuracy: ",
    ],
    "hydra_train data=each_once data.num_workers=1 data.batch_size=50 trainer.max_epochs=1": [
        r"shuffled by the indexed reader, 30 steps of 1 x 50 samples",
        r"val accuracy: ",
    ],
    "mixture": [
        r"crawl: 1,440 digits, each trained 1x\n",
        r"by_hand: 60 digits, each trained 20x\n",
        r"120 steps of 1 x 22 samples \(0 dropped, 0 repeated\)",
        r"by_hand: weight 5 of 11, 1,200 samples an epoch \(20 passes\)",
        r"digits recognised: (8[1-9]|9.|100)%",  # one in ten by chance
    ],
    "plain_torch --epochs 2": [r"val accuracy: [789].\.\d%"],
    "segmentation": [r"accuracy of pixels: 9.\.\d%"],
    "synthetic_source": [r"^12 steps, the last one of labels \[8, 9, 0, 1, 2, 3, 4, 5\]\n$"],
    "thread_pool": [r"^12 steps of 96 samples\n$"],
}
"""Commands of examples, and patterns of what they say."""
RUN_HERE = {"quickstart.py", *(f"{command.split()[0]}.py" for command in SAID)}
RUN_TOGETHER = {"tasks": {"detection.py", "image_text.py", "imagenet.py", "tokens.py"}}
LIMIT_S = 270  # it takes one minute where nothing else runs


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory, forked_programs):
    """What it says in a folder that is empty but for it; Lightning starts its second rank."""
    folder = tmp_path_factory.mktemp("quickstart")
    shutil.copytree(FOLDER, folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    command = ["examples/quickstart.py"]
    output, statuses = forked_programs.run(command, folder, timeout_s=LIMIT_S)
    assert statuses == [0], output
    return output


def test_every_example_is_run_by_a_test():
    """Here, in the file of several, or in one that has its name, or the name it begins with."""
    tests = [path.stem.removeprefix("test_examples_") for path in
             Path(__file__).parent.glob("test_examples_*.py")]  # fmt: skip
    run = {test: {name for name in EXAMPLES if name.startswith(test)} for test in tests}
    run |= RUN_TOGETHER
    assert all(run.values())
    assert RUN_HERE.union(*run.values()) == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_its_command_is_in_its_first_line(name):
    lines = (FOLDER / name).read_text().splitlines()
    assert f"python examples/{name}" in lines[0]
    assert len(lines) < 100 or name == "quickstart.py"


@pytest.mark.parametrize("command", SAID)
def test_an_example_runs_and_says_what_it_promises(command, tmp_path, forked_programs):
    if command == "audio_whole":
        pytest.importorskip("torchcodec.decoders", exc_type=(ImportError, OSError, RuntimeError))
    name, *options = command.split()
    program, environment = [FOLDER / f"{name}.py", *options], {"HOME": str(tmp_path)}
    output, statuses = forked_programs.run(program, tmp_path, environment=environment)
    assert statuses == [0], output
    for pattern in SAID[command]:
        assert re.search(pattern, output), output


def test_the_quickstart_trains_two_ranks_in_steps_that_it_tells(quickstart):
    lines = quickstart.splitlines()
    train, _ = [line for line in lines if line.startswith("train: 1,500 samples from 7 shards")]
    val, _ = [line for line in lines if line.startswith("val: 297 samples from 5 shards")]
    assert ", 23 steps of 2 x 32 samples" in train
    assert ", 5 steps of 2 x 32 samples" in val
    told = [line for line in lines if "data throughput: " in line]
    assert len(told) == 2
    assert all(re.search(r"(loader|trainer)-bound|unsure", line) for line in told)


def test_the_quickstart_reaches_95_percent_on_val(quickstart):
    [accuracy] = re.findall(r"^val accuracy: (.*)%$", quickstart, flags=re.MULTILINE)
    assert float(accuracy) >= 95
    # a share of the 297 samples: each was seen once, and no repeat was counted
    right = float(accuracy) / 100 * 297
    assert abs(right - round(right)) < 0.15


def test_the_quickstart_proves_each_epoch_also_the_one_that_is_resumed(quickstart):
    said = re.findall(
        r"^epoch (\d): ([\d,]+) samples .* as the order says", quickstart, re.MULTILINE
    )
    first, resumed = said[:5], said[5:]
    assert first == [*((str(epoch), "1,472") for epoch in range(4)), ("4", "512")]
    assert resumed == [("4", "960"), *((str(epoch), "1,472") for epoch in (5, 6, 7))]


def test_the_cells_of_the_notebook_run(tmp_path, forked_programs):
    cells = json.loads((FOLDER / "first_look.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    code = re.sub("^!lightning-shards (.*)$", r"shell('\1')", code, flags=re.MULTILINE)
    shell = "def shell(line): assert not os.system(f'{sys.executable} -m lightning_shards {line}')"
    said = "print(batch['image'].shape, trainer.callback_metrics)"
    (tmp_path / "cells.py").write_text(f"import os, sys\n{shell}\n{code}\n{said}\n")
    output, statuses = forked_programs.run(["cells.py"], tmp_path, timeout_s=LIMIT_S)
    assert statuses == [0], output
    assert "ExactResume: goes on at sample" in output
    assert re.search(r"torch.Size\(\[32, 1, 8, 8\]\) \{'accuracy': tensor\(0\.[3-9]", output)
    assert (tmp_path / "sheet.png").exists()
