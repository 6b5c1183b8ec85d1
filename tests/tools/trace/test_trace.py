"""`lightning-shards trace` says what training gets."""

import itertools
import json
import subprocess
import sys

import lightning.pytorch as pl
import pytest
import torch

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.tools import trace
from lightning_shards.workers.inline import produce
from tests.tools.trace.conftest import SPLITS, WORLD_SIZE, rows_in

EPOCHS = 3


class RoundRobinPool:
    """Workers without processes: their batches in turn, as torch's DataLoader takes them."""

    def __init__(self, num_workers):
        self.num_workers = num_workers

    def start(self, source, place, cursor):
        workers = [
            produce(source, place.with_worker(worker, self.num_workers), cursor)
            for worker in range(self.num_workers)
        ]
        return Turns(itertools.cycle(workers))


class Turns:
    def __init__(self, workers):
        self.workers = workers

    def __next__(self):
        return next(next(self.workers))

    def close(self):
        pass


@pytest.fixture
def make_module(settings):
    def make(splits, **options):
        values = settings(splits, **options)
        values |= {name: SplitConfig(**values[name]) for name in splits}
        return ShardDataModule(**values | {"loader": LoaderConfig(**values["loader"])})

    return make


def rows_of(batch):
    ids = batch["__id__"].tolist()
    return [[key, *each] for key, each in zip(batch["__key__"], ids, strict=True)]


# --- it is what training gets ---------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2, 3])
@pytest.mark.parametrize("name", SPLITS)
def test_it_equals_what_the_loaders_give(name, num_workers, make_module, write_config, traced):
    split = next(iter(SPLITS[name]))
    module = make_module(SPLITS[name], seed=5)
    loaders = [module.loader(split, rank=rank, world_size=WORLD_SIZE) for rank in range(WORLD_SIZE)]
    for loader in loaders:
        loader.pool = RoundRobinPool(max(num_workers, 1))
    config = write_config(SPLITS[name], seed=5, num_workers=num_workers)
    for epoch in range(EPOCHS):  # the loaders' streams roll on from epoch to epoch
        ranks = [[rows_of(batch) for batch in loader] for loader in loaders]
        expected = [list(step) for step in zip(*ranks, strict=True)]
        for start, stop in [(0, len(expected)), (2, 3), (3, len(expected))]:
            more = ["--split", split]
            document = traced(config, epoch=epoch, steps=f"{start}:{stop}", more=more)
            assert rows_in(document) == expected[start:stop]


class Recorder(pl.LightningModule):
    """Writes down the rows that it is trained on."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.rows = {}

    def training_step(self, batch, batch_idx):
        self.rows[self.current_epoch, batch_idx] = rows_of(batch)
        return self.layer(batch["label"][:, None].float()).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)


def test_an_evaluation_set_is_asked_by_its_name(folder, make_module, write_config, traced):
    urls = str(folder / "shard-*.tar")
    config = write_config({}, val_sets={"few": f"{folder}/shard-000000.tar", "all": {"urls": urls}})
    loader = make_module({}, val_sets={"all": urls}).loader("val/all", rank=1, world_size=2)
    document = traced(config, steps=f"0:{len(loader)}", more=["--split", "val/all"])
    assert document["split"] == "val/all"
    assert [step[1] for step in rows_in(document)] == [rows_of(batch) for batch in loader]


@pytest.mark.filterwarnings(  # lightning/pytorch/utilities/_pytree.py, torch 2.13
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
)
@pytest.mark.parametrize(
    ("name", "num_workers"), [("resampled stream", 2), ("shuffled indexed", 0)]
)
def test_it_equals_what_a_trainer_trains_on(
    name, num_workers, make_module, write_config, traced, tmp_path
):
    model = Recorder()
    loader = {"cache_dir": str(tmp_path), "multiprocessing_context": "fork"}
    module = make_module(SPLITS[name], num_workers=num_workers, loader=loader)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=2, limit_train_batches=7, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, module)
    config = write_config(SPLITS[name], num_workers=num_workers, trainer={"devices": 1})
    for epoch in range(2):
        expected = [[model.rows[epoch, step]] for step in range(7)]
        assert rows_in(traced(config, epoch=epoch, steps="0:7")) == expected


def test_no_field_is_decoded(write_config, traced):
    assert traced(write_config(fields={"label": "absent.cls"}))["steps"]


# --- what it prints -------------------------------------------------------------------------------


def test_the_document_says_what_was_asked(write_config, traced):
    document = traced(write_config(), epoch=1, steps="1:3", more=["--world-size", "3"])
    assert {name: document[name] for name in ("epoch", "world_size", "split")} == {
        "epoch": 1, "world_size": 3, "split": "train",
    }  # fmt: skip
    assert [step["step"] for step in document["steps"]] == [1, 2]
    assert [len(step["ranks"]) for step in document["steps"]] == [3, 3]


def test_the_table_has_a_line_per_sample(write_config, capsys):
    config = write_config({"val": {}})
    trace.main(["--config", str(config), "--split=val", "--epoch=0", "--steps=1:2"])
    assert capsys.readouterr().out == (
        "step  rank  row  shard  sample  key\n"
        "   1     0    0      0       4  000004\n"
        "   1     0    1      1       0  000005\n"
        "   1     1    0      1       1  000006\n"
        "   1     1    1      1       2  000007\n"
    )


@pytest.mark.parametrize(
    ("trainer", "world_size"),
    [
        ({"devices": 2, "num_nodes": 2}, 4),
        ({"devices": 3}, 3),
        ({"devices": "auto"}, 1),
        ({"devices": -1}, 1),
        ({"devices": [0, 1]}, 2),
        ({"devices": "0,1,"}, 2),
        ({"devices": "4"}, 4),
        ({}, 1),
    ],
)
def test_the_world_size_is_the_trainers_or_one_with_a_note(
    trainer, world_size, write_config, capsys
):
    command = ["--config", str(write_config(trainer=trainer)), "--epoch=0", "--steps=0:1"]
    trace.main([*command, "--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["world_size"] == world_size
    assert ("note" in printed.err) == (world_size == 1)


def test_a_class_path_and_interpolations_are_understood(settings, write_config, traced):
    plain = traced(write_config(seed=9))
    section = {
        "class_path": "lightning_shards.ShardDataModule",
        "init_args": settings({"train": {}}),
    }
    section["init_args"]["seed"] = "${seed_everything}"
    document = {"seed_everything": 9, "trainer": {"devices": WORLD_SIZE}, "data": section}
    assert traced(write_config(text=json.dumps(document))) == plain


def test_help_imports_neither_torch_nor_lightning():
    code = (
        "import sys, contextlib; sys.argv = ['lightning-shards', 'trace', '--help']\n"
        "from lightning_shards.__main__ import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print(sorted({'torch', 'lightning', 'numpy', 'webdataset'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: lightning-shards trace")
    assert done.stdout.endswith("\n[]\n")
