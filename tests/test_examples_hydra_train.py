"""The hydra example: a choice of data, options, and one that does not fit."""

import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

pytest.importorskip("hydra", reason="hydra-core is not installed; it comes with the extra `test`")

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(tmp_path, forked_programs):
    """Runs the example with these arguments: its exit status and what it says."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))

    def ended(*arguments):
        command = ["examples/hydra_train.py", *arguments]
        output, [status] = forked_programs.run(command, tmp_path)
        return status, output

    return ended


@pytest.mark.slow
def test_a_choice_of_data_and_options_reach_the_run_which_keeps_them_beside_its_logs(tmp_path, run):
    options = ["data.num_workers=1", "data.batch_size=50", "trainer.max_epochs=1"]
    status, output = run("data=each_once", *options)
    assert status == 0, output
    assert "shuffled by the indexed reader, 30 steps of 1 x 50 samples" in output
    assert "val accuracy: " in output
    assert "leaked" not in output  # semaphores of the workers
    [saved] = tmp_path.glob("outputs/*/*/.hydra/config.yaml")
    assert OmegaConf.load(saved).data.train.sampling == "shuffled"
    assert list(saved.parents[1].glob("lightning_logs/version_0/checkpoints/*.ckpt"))


@pytest.mark.slow
def test_a_run_without_a_val_split_ends_well(run):
    options = ["data.num_workers=0", "trainer.max_epochs=1", "+trainer.limit_train_batches=1"]
    status, output = run("data.val=null", *options)
    assert status == 0, output
    assert "val accuracy" not in output
