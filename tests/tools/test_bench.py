"""`lightning-shards bench` measures real fits, writes nowhere, and says what it found."""

import io
import json
import math
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from lightning_shards.profiling import measuring
from lightning_shards.tools import bench
from lightning_shards.tools.bench_settings import current_setting

pytestmark = [
    # Lightning 2.6's own use of jsonargparse 4.53
    pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed"),
]

PROJECT = '''
"""A model that tries what a benchmark must survive, and data modules of other kinds."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback


class Model(pl.LightningModule):
    def __init__(self, learning_rate: float = 0.1) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        print("a model that prints")
        if isinstance(batch, dict):
            batch = batch["label"]
        return self.layer(batch.float().reshape(-1, 1)).square().mean()

    def validation_step(self, batch):
        raise AssertionError("nobody asked for a validation")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), self.learning_rate)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}


class WritesCallback(Callback):
    def __init__(self) -> None:
        raise AssertionError("callbacks of the configuration are left out")


class OwnData(pl.LightningDataModule):
    """Not ours."""

    def __init__(self, size: int = 12, num_workers: int = 0) -> None:
        super().__init__()
        self.size, self.num_workers = size, num_workers

    def train_dataloader(self):
        data = torch.arange(self.size)
        return torch.utils.data.DataLoader(data, batch_size=4, num_workers=self.num_workers)


class FixedData(pl.LightningDataModule):
    """Without a number of workers."""

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.arange(8), batch_size=4)


def plus_one(value):
    return value + 1
'''


@pytest.fixture(scope="module")
def folder(pack_into, tmp_path_factory):
    """A project: code, shards, and a configuration that would write into runs/."""
    folder = tmp_path_factory.mktemp("bench")
    pack_into(folder / "shards", [9, 14, 11], "train")
    (folder / "bench_project.py").write_text(PROJECT)
    config = {
        "seed_everything": 1,
        "trainer": {
            "accelerator": "cpu",
            "strategy": "ddp",
            "devices": 2,
            "max_steps": 1,
            "min_epochs": 2,
            "limit_train_batches": 2,
            "val_check_interval": 50,
            "check_val_every_n_epoch": None,
            "default_root_dir": "runs",
            "logger": {
                "class_path": "lightning.pytorch.loggers.CSVLogger",
                "init_args": {"save_dir": "runs"},
            },
            "callbacks": [{"class_path": "bench_project.WritesCallback"}],
        },
        "model": {"class_path": "bench_project.Model"},
        "data": {
            "train": {"urls": "shards/train-*.tar"},
            "val": {"urls": "shards/train-*.tar"},
            "fields": {"label": "cls"},
            "batch_size": 4,
            "num_workers": 1,
            "loader": {"cache_dir": "cache"},
        },
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def in_folder(folder):
    """The folder is the current one, its code can be imported, and no seed is left behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["lightning-shards"])
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("PL_GLOBAL_SEED", "0")
        yield folder
    sys.modules.pop("bench_project", None)


@pytest.fixture(scope="module")
def run(in_folder):
    """Runs the command in this process: exit status, stdout, stderr."""

    def run(*arguments, quick=True):
        out, errors, status = io.StringIO(), io.StringIO(), 0
        times = ["--seconds", "0.1", "--repeats", "1"] if quick else []
        with redirect_stdout(out), redirect_stderr(errors):
            try:
                bench.main([*arguments, *times])
            except SystemExit as stop:
                status = stop.code
        return status, out.getvalue(), errors.getvalue()

    return run


def files_of(folder):
    """What is in the folder but for caches."""
    ours = {"cache", "__pycache__"}
    files = [path.relative_to(folder) for path in folder.rglob("*")]
    return sorted(str(path) for path in files if not ours & set(path.parts))


@pytest.fixture(scope="module")
def totals(run, in_folder, tmp_path_factory):
    """One run with everything, the files around it before and after, and its plot."""
    plot = tmp_path_factory.mktemp("plot") / "new" / "rates.png"
    before = files_of(in_folder)
    sweep = [
        "--num-workers=0,2",
        "--pool=threads",
        "--seconds=0.2",
        "--repeats=2",
        f"--plot={plot}",
    ]
    status, out, errors = run("--config", "config.yaml", *sweep, "--json", quick=False)
    assert status == 0, errors
    return json.loads(out), before, files_of(in_folder), plot, errors


@pytest.mark.slow
def test_all_settings_are_measured_and_the_configured_one_among_them(totals):
    found = totals[0]
    names = [(row["pool"], row["num_workers"], row["is_configured"]) for row in found["settings"]]
    assert names == [
        ("processes", 1, True),
        ("inline", 0, False),
        ("threads", 2, False),
    ]
    assert not any(row["refused"] for row in found["settings"])


def test_rates_are_medians_of_positive_runs_with_their_extremes(totals):
    found = totals[0]
    rates = [found["trainer"]]
    rates += [row[part] for row in found["settings"] for part in ("loader", "both")]
    assert len(found["trainer"]["runs"]) == 2
    for rate in rates:
        assert len(rate["runs"]) in (1, 2)  # beside other work one may look hopeless
        assert 0 < rate["least"] == min(rate["runs"])
        assert rate["most"] == max(rate["runs"]) < math.inf
        assert rate["median"] == pytest.approx(sum(rate["runs"]) / len(rate["runs"]))


def test_stages_are_shares_of_the_workers_time(totals):
    for row in totals[0]["settings"]:
        assert {"open", "read", "decode", "collate", "rest"} <= row["stages"].keys()
        assert sum(row["stages"].values()) == pytest.approx(1, abs=0.01)
        assert row["stages"]["decode"] > 0
        assert 0 <= row["wait_fraction"] <= 1


def test_one_of_the_settings_is_recommended_with_a_sentence(totals):
    found = totals[0]
    chosen = found["recommended"]
    wanted = ("pool", "num_workers", "threads_per_worker")
    assert [chosen[name] for name in wanted] in [
        [row[name] for name in wanted] for row in found["settings"]
    ]
    assert chosen["limit"] in ("trainer", "loader", "both", "unsure")
    assert "samples/s" in chosen["sentence"]


def test_the_users_folders_stay_as_they_were(totals):
    _, before, after, _, _ = totals
    assert before == after


def test_what_a_model_prints_is_not_in_the_document(totals):
    assert "a model that prints" in totals[4]  # and json.loads read all of stdout


def test_the_plot_is_a_picture(totals):
    assert totals[3].read_bytes().startswith(b"\x89PNG")


def test_a_refused_setting_is_a_row_that_says_why(run):
    options = ["--data.transforms.label=bench_project.plus_one", "--data.num_workers=0"]
    status, out, errors = run(
        "--config", "config.yaml", "--num-workers=0,1", "--pool=threads", *options
    )
    assert status == 0, errors
    refused = next(line for line in out.splitlines() if line.startswith("1 thread: refused: "))
    assert "the transform of 'label' may draw random numbers" in refused
    assert "0 (inline) * " in out
    assert "to set it: --data.num_workers=0" in out


def test_bare_shards_are_measured_without_a_trainer(run):
    status, out, errors = run(
        "--urls", "shards/train-*.tar", "--num-workers=0,1", "--pool=threads", "--cache-dir=cache",
        "--batch-size=3", "--image-size=5", "--json",
    )  # fmt: skip
    assert status == 0, errors
    found = json.loads(out)
    assert found["trainer"] is None
    assert found["batch_size"] == 3
    assert [row["both"] for row in found["settings"]] == [None, None]
    assert all(row["loader"]["median"] > 0 for row in found["settings"])
    assert found["settings"][0]["stages"]["decode"] > 0


def test_data_modules_of_other_kinds_are_measured_too(run, in_folder):
    config = json.loads((in_folder / "config.yaml").read_text())
    config["data"] = {"class_path": "bench_project.OwnData", "init_args": {"size": 20}}
    (in_folder / "own.yaml").write_text(json.dumps(config))
    status, out, errors = run("--config", "own.yaml", "--num-workers=0", "--json")
    assert status == 0, errors
    row = json.loads(out)["settings"][0]
    assert (row["pool"], row["num_workers"], row["is_configured"]) == ("own", 0, True)
    assert row["loader"]["median"] > 0 < row["both"]["median"]
    assert row["stages"] == {}


def test_a_configuration_without_class_names_is_told_them(run, in_folder):
    config = json.loads((in_folder / "config.yaml").read_text())
    config |= {"model": {"learning_rate": 0.01}, "data": {}}
    (in_folder / "fixed.yaml").write_text(json.dumps(config))
    classes = ["--model-class=bench_project.Model", "--data-class=bench_project.FixedData"]
    status, out, errors = run("--config", "fixed.yaml", *classes)
    assert status == 0, errors
    assert "as it is *" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config=none.yaml"], "none.yaml"),
        (["--config=config.yaml", "--secons=1"], "unrecognized arguments: --secons=1"),
        (["--config=config.yaml", "--data.batch_size=many"], "data.batch_size: expected int"),
        (["--config=config.yaml", "--data.train.urls=no-*.tar"], "no file matches no-*.tar"),
        (["--config=config.yaml", "--data.fields.label=txt"], "has no member for field 'label'"),
        (["--config=config.yaml", "--trainer.devices=2"], "bench measures one rank, not 2"),
        (["--config=config.yaml", "--trainer.accelerator=none"], "trainer"),
        (["--config=config.yaml", "--model-class=bench_project.none"], "cannot be imported"),
        (["--config=config.yaml", "--seconds=0"], "--seconds must be above 0"),
        (["--config=config.yaml", "--repeats=0"], "--repeats must be at least 1"),
        (["--config=config.yaml", "--num-workers=1,x"], "--num-workers must be whole numbers"),
        (["--config=config.yaml", "--threads-per-worker=0"], "--threads-per-worker must be"),
        (["--config=config.yaml", "--pool=fibers"], "--pool must name"),
        (["--config=config.yaml", "--plot=rates.gif"], "rates.gif"),
        (["--urls=no.tar"], "no.tar"),
        (["--urls=shards/train-*.tar", "--fields", "label"], "--fields takes NAME=VALUE"),
    ],
)
def test_what_cannot_be_measured_is_one_line(run, arguments, said):
    status, out, errors = run(*arguments, quick=False)
    assert status == 2
    assert out == ""
    assert errors.startswith("lightning-shards bench: ")
    assert errors.count("\n") == 1
    assert said in errors


def test_settings_take_turns_so_that_a_busy_minute_meets_all(run, monkeypatch):
    order = []
    window = measuring.Measurement(measuring.TimeTotals(1, 4, 1.0), {})

    def measure(name):
        def totals(what, *others):
            data = what.data if isinstance(what, measuring.Fit) else what
            order.append((name, current_setting(data).name))
            return window

        return totals

    for name in ("loader", "trainer", "both"):
        monkeypatch.setattr(measuring, f"measure_{name}", measure(name))
    sweep = ["--num-workers=0,1", "--pool=threads", "--repeats=2", "--data.num_workers=0"]
    status, _, errors = run("--config", "config.yaml", *sweep, quick=False)
    assert status == 0, errors
    settings = [(part, name) for name in ("0 (inline)", "1 thread") for part in ("loader", "both")]
    parts = [each if each[0] != "trainer" else "trainer" for each in order]
    assert parts == ["trainer", *settings] * 2


def test_help_needs_no_torch(in_folder):
    code = """
import sys
from lightning_shards.tools import bench
try:
    bench.main(["--help"])
except SystemExit:
    assert "torch" not in sys.modules
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "lightning-shards bench --config config.yaml" in done.stdout
