"""The log says at the start of a fit what batches and epochs of a mixture hold."""

import logging

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_shards import ExactResume
from lightning_shards.build.loaders import describe
from lightning_shards.shards.index import ShardIndex
from lightning_shards.workers.pool import PoolDescription
from tests.mixed_shards import mix_of, module_of

# lightning/pytorch/utilities/_pytree.py, torch 2.13
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")

NAMES = ("web", "labels", "more")
EVEN_FROM_2 = [{"epoch": 2, "weights": {"web": 1, "labels": 1}}]


@pytest.fixture
def make_module(tmp_path):
    mix = mix_of(tmp_path / "shards", NAMES)

    def make(split=None, **settings):
        return module_of(tmp_path, mix, split, **settings)

    return make


@pytest.fixture
def lines_of(make_module):
    """The lines about a mixture of 5 web, 2 labels and 1 more a round, in epochs of four rounds."""

    def lines(split=None, world_size=1, epoch=0, **settings):
        source = make_module(split, **settings).source("train")
        pool = PoolDescription("inline")
        return describe("train", source, world_size, pool, epoch=epoch).splitlines()

    return lines


def test_the_weights_and_the_passes_of_an_epoch_are_told(lines_of):
    first, *others = lines_of(world_size=2)
    assert first == (
        "train: 32 samples from 8 shards, mixture by the indexed reader, 2 steps of 2 x 8 samples "
        "(0 dropped, 0 repeated)"
    )
    assert others == [
        "  3 components in rounds of 8 samples, in epoch 0:",
        "  web: weight 5 of 8, 20 samples an epoch (1.176 passes)",
        "  labels: weight 2 of 8, 8 samples an epoch (1.333 passes)",
        "  more: weight 1 of 8, 4 samples an epoch (0.5714 passes)",
    ]


def test_an_epoch_has_the_weights_of_its_stage(lines_of):
    split = {"schedule": EVEN_FROM_2}
    then = lines_of(split, epoch=2)
    assert [": weight 1 of 2, 16 " in line for line in then[2:4]] == [True] * 2
    assert "more: weight 0 of 2, 0 samples" in then[4]
    assert len(then) == 5


def test_a_component_whose_samples_are_unknown_has_no_passes(lines_of, monkeypatch):
    monkeypatch.setattr(ShardIndex, "known_samples", None)
    assert lines_of()[2] == "  web: weight 5 of 8, 20 samples an epoch"


class Small(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch):
        return self.weight * batch["label"].float().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_a_resumed_fit_tells_the_weights_of_the_epoch_in_which_it_begins(
    make_module, tmp_path, caplog
):
    def fit(epochs, **checkpoint):
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        trainer = Trainer(
            accelerator="cpu", max_epochs=epochs, default_root_dir=tmp_path,
            callbacks=[ExactResume()], enable_checkpointing=False,
            **quiet,
        )  # fmt: skip
        caplog.clear()
        with caplog.at_level(logging.INFO):
            trainer.fit(Small(), make_module({"schedule": EVEN_FROM_2}), **checkpoint)
        told = [line for each in caplog.messages for line in each.splitlines()]
        words = ("in rounds of", "web:")
        return trainer, [line for line in told if any(word in line for word in words)]

    trainer, told = fit(2)
    assert told[0].endswith(", in epoch 0:")
    assert told[1].startswith("  web: weight 5 of 8,")
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    _, told = fit(3, ckpt_path=tmp_path / "end.ckpt")
    assert told[0].endswith(", in epoch 2:")
    assert told[1].startswith("  web: weight 1 of 2,")


def test_the_line_of_a_component_says_what_its_filter_leaves(tmp_path):
    (tmp_path / "out.txt").write_text("web000\nweb001\n")
    own = {"exclude": str(tmp_path / "out.txt")}
    module = module_of(tmp_path, mix_of(tmp_path / "shards", NAMES, web=own))
    lines = describe("train", module.source("train"), 1, PoolDescription("inline")).splitlines()
    told = {name: line for name in NAMES for line in lines if line.startswith(f"  {name}: ")}
    assert told["web"].endswith("; keep and exclude leave 15 of 17")
    assert "leave" not in told["labels"] + told["more"]
