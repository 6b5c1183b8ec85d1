"""The omegaconf example: named experiments, options, and a saved run that runs again."""

import importlib
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

EXAMPLES = Path(__file__).parents[1] / "examples"
SHORT = ["trainer.max_epochs=1", "trainer.limit_train_batches=2", "data.num_workers=0"]


@pytest.mark.slow
def test_an_experiment_with_options_is_saved_and_is_an_experiment_itself(tmp_path, forked_programs):
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))

    def run(*arguments):
        command = ["examples/experiments.py", *arguments]
        output, statuses = forked_programs.run(command, tmp_path)
        assert statuses == [0], output
        assert "val accuracy: " in output
        return output

    first = run("each_once", "data.train.batch_size=8", "model.learning_rate=0.1", *SHORT)
    assert "1,500 samples from 7 shards, shuffled by the indexed reader, 187 steps" in first
    saved = tmp_path / "lightning_logs/version_0/experiment.yaml"
    again = run(str(saved.relative_to(tmp_path)), "model.learning_rate=0.2")
    assert "shuffled by the indexed reader, 187 steps" in again
    experiment = OmegaConf.load(saved)
    assert experiment.data.train.urls == "data/digits/train/train-*.tar"
    assert experiment.model.learning_rate == 0.1
    experiment.model.learning_rate = 0.2
    assert OmegaConf.load(tmp_path / "lightning_logs/version_1/experiment.yaml") == experiment


@pytest.fixture
def read_experiment(monkeypatch):
    """That of the example."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("experiments").read_experiment


def test_options_win_over_the_experiment_and_the_experiment_over_the_base(read_experiment):
    settings = read_experiment("small_steps", ["model.learning_rate=0.5", "data.seed=3"])
    assert settings.model.learning_rate == 0.5
    assert (settings.data.batch_size, settings.data.seed, settings.data.num_workers) == (8, 3, 2)
    assert settings.data.train.urls == "data/digits/train/train-*.tar"
