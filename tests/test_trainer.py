"""One process, real Trainers: what a user sees of the loaders through Lightning's own switches."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import psutil
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_shards import Cursor, LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError, StateError
from lightning_shards.workers.inline import InlinePool

pytestmark = pytest.mark.filterwarnings(  # lightning/pytorch/utilities/_pytree.py, torch 2.13
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
)

TRAIN, VAL = [5, 9, 6], [3, 4]  # 20 samples, 10 steps of 2; 7 samples, 4 steps of 2, 2, 2, 1
STEPS, VAL_STEPS = 10, 4

Ids = list[tuple[int, int]]


def ids_of(batch: Any) -> Ids:
    """The ids of the samples in a batch that are no repeats."""
    weights = batch.get("__weight__", torch.ones(len(batch["__id__"])))
    return [
        tuple(sample)
        for sample, weight in zip(batch["__id__"].tolist(), weights.tolist(), strict=True)
        if weight
    ]


class Recorder(pl.LightningModule):
    """Writes down what it was trained, validated, tested and asked to predict on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 10)
        self.steps: list[tuple[int, int, Ids]] = []  # epoch, batch of the epoch, ids
        self.sanity: Ids = []
        self.validations: list[Ids] = []
        self.tested: Ids = []
        self.estimated: float | None = None

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.steps.append((self.current_epoch, batch_idx, ids_of(batch)))
        return self._loss(batch)

    def on_validation_epoch_start(self) -> None:
        if not self.trainer.sanity_checking:
            self.validations.append([])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        seen = self.sanity if self.trainer.sanity_checking else self.validations[-1]
        seen += ids_of(batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.tested += ids_of(batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Ids:
        return ids_of(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)

    def _loss(self, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(
            self.layer(batch["image"].flatten(1).float()), batch["label"]
        )

    def epochs(self) -> dict[int, list[Ids]]:
        """The ids of each batch, epoch by epoch."""
        found: dict[int, list[Ids]] = {}
        for epoch, _, ids in self.steps:
            found.setdefault(epoch, []).append(ids)
        return found


class Saver(ModelCheckpoint):
    """Keeps all it saves, and leaves no trace: Lightning asks for callbacks that have a state."""

    def __init__(self, folder: Path, name: str, **options: Any) -> None:
        super().__init__(folder, name, save_top_k=-1, **options)

    def state_dict(self) -> dict[str, Any]:
        return {}


class EstimatingRecorder(Recorder):
    """Asks for the number of steps where a learning rate schedule would."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.estimated = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


class CountingPool(InlinePool):
    """Notes where streams were started, and how many were."""

    def __init__(self, starts: list[Cursor]) -> None:
        object.__setattr__(self, "starts", starts)

    def start(self, source: Any, place: Any, cursor: Cursor) -> Any:
        self.starts.append(cursor)
        return super().start(source, place, cursor)


class CountedModule(ShardDataModule):
    """A data module whose streams are counted."""

    def __init__(self, *splits: Any, **options: Any) -> None:
        super().__init__(*splits, **options)
        self.starts: dict[str, list[Cursor]] = {"train": [], "val": []}

    def _make_loader(self, split: Any, *arguments: Any) -> Any:
        loader = super()._make_loader(split, *arguments)
        if split in self.starts:
            loader.pool = CountingPool(self.starts[split])
        return loader


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small networks on a machine that others use too: several threads would wait for a core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def make_data(
    pack_into: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """Makes data modules over one set of shards; each option of theirs can be given."""
    folder = tmp_path_factory.mktemp("data")
    urls = {"train": pack_into(folder, TRAIN, "train"), "val": pack_into(folder, VAL, "val")}

    def made(
        kind: type[ShardDataModule] = CountedModule,
        *,
        sampling: Any = None,
        reader: Any = "auto",
        **options: Any,
    ) -> Any:
        defaults: dict[str, Any] = {
            "fields": {"image": "png", "label": "cls"},
            "decode": {"image": "gray"},
            "batch_size": 2,
            "num_workers": 0,
            "loader": LoaderConfig(cache_dir=str(folder / "cache")),
            "train": SplitConfig(urls["train"], sampling=sampling, reader=reader),
            "val": SplitConfig(urls["val"]),
        }
        return kind(**(defaults | options))

    return made


@pytest.fixture(scope="module")
def make_trainer(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., pl.Trainer]:
    """Makes trainers that say and write nothing by themselves."""
    folder = tmp_path_factory.mktemp("trainer")

    def made(**options: Any) -> pl.Trainer:
        defaults: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_checkpointing": "callbacks" in options,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": folder,
        }
        if not {"max_epochs", "max_steps", "fast_dev_run"} & options.keys():
            defaults["max_epochs"] = 3
        return pl.Trainer(**(defaults | options))

    return made


def all_ids(counts: list[int]) -> Ids:
    return [(shard, sample) for shard, count in enumerate(counts) for sample in range(count)]


# --- fit, under Lightning's own switches --------------------------------------------------------

# name: (options of the Trainer, batches of each epoch, number of validations, optimiser steps)
SWITCHES: dict[str, tuple[dict[str, Any], list[int], int, int]] = {
    "none": ({}, [10, 10, 10], 3, 30),
    "limit_train_batches=4": ({"limit_train_batches": 4}, [4, 4, 4], 3, 12),
    "limit_train_batches=.5": ({"limit_train_batches": 0.5}, [5, 5, 5], 3, 15),
    "limit_train_batches=99": ({"limit_train_batches": 99}, [10, 10, 10], 3, 30),
    "overfit_batches=3": ({"overfit_batches": 3}, [3, 3, 3], 3, 9),
    "fast_dev_run": ({"fast_dev_run": True}, [1], 1, 1),
    "fast_dev_run=2": ({"fast_dev_run": 2}, [2], 1, 2),
    "max_steps=13": ({"max_steps": 13}, [10, 3], 1, 13),
    "max_steps=20": ({"max_steps": 20}, [10, 10], 2, 20),
    "reload": ({"reload_dataloaders_every_n_epochs": 1}, [10, 10, 10], 3, 30),
    "reload, limit": (
        {"reload_dataloaders_every_n_epochs": 1, "limit_train_batches": 4}, [4, 4, 4], 3, 12,
    ),
    "val_check_interval=.5": ({"val_check_interval": 0.5}, [10, 10, 10], 6, 30),
    "val_check_interval=3": ({"val_check_interval": 3}, [10, 10, 10], 9, 30),
    "val every 4 steps, over epochs": (
        {"val_check_interval": 4, "check_val_every_n_epoch": None}, [10, 10, 10], 7, 30,
    ),
    "check_val_every_n_epoch=2": ({"check_val_every_n_epoch": 2}, [10, 10, 10], 1, 30),
    "accumulate_grad_batches=3": ({"accumulate_grad_batches": 3}, [10, 10, 10], 3, 12),
}  # fmt: skip


class Run(NamedTuple):
    """A fit that has ended."""

    model: Recorder
    data: CountedModule
    trainer: pl.Trainer


@pytest.fixture(scope="module")
def run_of(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> Callable[[str], Run]:
    """One fit for each switch, made when it is first asked for."""

    @cache
    def run(switch: str) -> Run:
        fitted = Run(Recorder(), make_data(), make_trainer(**SWITCHES[switch][0]))
        fitted.trainer.fit(fitted.model, fitted.data)
        return fitted

    return run


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_fit_takes_the_steps_and_validations_that_its_switches_say(
    switch: str, run_of: Callable[[str], Run]
) -> None:
    _, batches, validations, optimiser_steps = SWITCHES[switch]
    model, _, trainer = run_of(switch)
    assert [len(epoch) for epoch in model.epochs().values()] == batches
    assert list(model.epochs()) == list(range(len(batches)))
    assert len(model.validations) == validations
    assert trainer.global_step == optimiser_steps
    assert all(len(ids) == 2 for _, _, ids in model.steps)


@pytest.mark.parametrize("switch", SWITCHES)
def test_the_train_stream_starts_once_and_is_not_restarted_between_epochs(
    switch: str, run_of: Callable[[str], Run]
) -> None:
    assert run_of(switch).data.starts["train"] == [Cursor(0, 0)]


@pytest.mark.parametrize("switch", ["none", "val_check_interval=.5", "reload", "max_steps=20"])
def test_the_val_stream_rewinds_without_a_restart(
    switch: str, run_of: Callable[[str], Run]
) -> None:
    """It is started for the sanity check, which is shorter, and for all validations."""
    assert len(run_of(switch).model.validations) > 1
    assert run_of(switch).data.starts["val"] == [Cursor(), Cursor()]


@pytest.mark.parametrize("switch", SWITCHES)
def test_steps_can_be_estimated_in_configure_optimizers(
    switch: str, make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    options, _, _, optimiser_steps = SWITCHES[switch]
    model = EstimatingRecorder()
    make_trainer(**options).fit(model, make_data())
    assert model.estimated == optimiser_steps
    assert len(model.steps) == sum(SWITCHES[switch][1])  # asking has changed nothing


@pytest.mark.parametrize("switch", ["none", "limit_train_batches=4", "reload", "max_steps=20"])
def test_each_epoch_has_another_order(switch: str, run_of: Callable[[str], Run]) -> None:
    orders = [str(batches) for batches in run_of(switch).model.epochs().values()]
    assert len(set(orders)) == len(orders) > 1


@pytest.mark.parametrize("switch", ["limit_train_batches=4", "limit_train_batches=.5"])
def test_a_limit_is_a_shorter_epoch_of_the_same_order(
    switch: str, run_of: Callable[[str], Run]
) -> None:
    whole = run_of("none").model.epochs()
    for epoch, batches in run_of(switch).model.epochs().items():
        assert batches == whole[epoch][: len(batches)]


@pytest.mark.parametrize("sampling", ["resampled", "shuffled"])
def test_one_seed_gives_one_order_and_another_seed_another(
    sampling: str, make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    orders: list[Any] = []
    for seed in (7, 7, 8):
        model = Recorder()
        make_trainer().fit(model, make_data(sampling=sampling, seed=seed))
        orders.append(model.steps)
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_shuffled_training_serves_each_sample_once_an_epoch(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    model = Recorder()
    make_trainer().fit(model, make_data(sampling="shuffled"))
    for batches in model.epochs().values():
        assert sorted(chain(*batches)) == all_ids(TRAIN)


# --- validation, test, predict -------------------------------------------------------------------


@pytest.mark.parametrize("switch", ["none", "val_check_interval=.5", "reload", "max_steps=20"])
def test_every_validation_sees_each_sample_once(switch: str, run_of: Callable[[str], Run]) -> None:
    assert run_of(switch).model.validations == [all_ids(VAL)] * SWITCHES[switch][2]


@pytest.mark.parametrize("sanity_steps", [0, 1, 2, -1])
def test_a_sanity_check_takes_nothing_from_the_validation_after_it(
    sanity_steps: int, make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    model = Recorder()
    make_trainer(num_sanity_val_steps=sanity_steps, max_epochs=1).fit(model, make_data())
    assert model.sanity == (all_ids(VAL) if sanity_steps < 0 else all_ids(VAL)[: 2 * sanity_steps])
    assert model.validations == [all_ids(VAL)]


@pytest.mark.parametrize(("limit", "samples"), [(1, 2), (3, 6), (0.5, 4), (99, 7)])
def test_limited_validations_begin_at_the_beginning_each_time(
    limit: float,
    samples: int,
    make_data: Callable[..., Any],
    make_trainer: Callable[..., pl.Trainer],
) -> None:
    model = Recorder()
    make_trainer(limit_val_batches=limit).fit(model, make_data())
    assert model.validations == [all_ids(VAL)[:samples]] * 3


def test_limit_val_batches_0_validates_never_and_trains_all(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    model = Recorder()
    make_trainer(limit_val_batches=0).fit(model, make_data())
    assert model.validations == []
    assert len(model.steps) == 3 * STEPS


def test_validate_test_and_predict_see_each_sample_once(
    make_data: Callable[..., Any],
    make_trainer: Callable[..., pl.Trainer],
    pack_shards: Callable[..., list[str]],
) -> None:
    model, trainer = Recorder(), make_trainer()
    data = make_data(
        test=SplitConfig(pack_shards([1, 4], "test")),
        predict=SplitConfig(pack_shards([2, 1, 2], "predict")),
    )
    trainer.validate(model, data, verbose=False)
    trainer.test(model, data, verbose=False)
    predicted = trainer.predict(model, data)
    assert model.validations == [all_ids(VAL)]
    assert model.tested == all_ids([1, 4])
    assert list(chain(*predicted)) == all_ids([2, 1, 2])


def test_validate_can_be_called_before_between_and_after_fits(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    model, data, trainer = Recorder(), make_data(), make_trainer(max_epochs=1)
    trainer.validate(model, data, verbose=False)
    trainer.fit(model, data)
    trainer.validate(model, data, verbose=False)
    assert model.validations == [all_ids(VAL)] * 3
    assert len(model.steps) == STEPS


# --- fits of one module, and splits that are not there -------------------------------------------


def test_a_second_fit_of_another_trainer_with_the_same_module_begins_anew(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    data, first, second = make_data(), Recorder(), Recorder()
    make_trainer().fit(first, data)
    make_trainer().fit(second, data)
    assert first.steps == second.steps
    assert len(second.validations) == 3


def test_a_trainer_that_fits_on_goes_on_with_the_next_epochs(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    whole, parts, data = Recorder(), Recorder(), make_data()
    make_trainer(max_epochs=4).fit(whole, make_data())
    trainer = make_trainer(max_epochs=2)
    trainer.fit(parts, data)
    trainer.fit_loop.max_epochs = 4
    trainer.fit(parts, data)
    assert parts.steps == whole.steps


class TrainsOnly(Recorder):
    """Has no validation_step, as Lightning sees it."""

    validation_step = pl.LightningModule.validation_step


def test_a_fit_without_a_val_split_runs_without_a_warning(  # a warning is an error here
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    model = TrainsOnly()
    make_trainer().fit(model, make_data(val=None))
    assert len(model.steps) == 3 * STEPS
    assert model.validations == []


def test_a_validation_step_that_has_no_val_split_is_missed_and_told_so(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    model = Recorder()
    with pytest.warns(UserWarning, match="defined a `validation_step` but have no"):
        make_trainer().fit(model, make_data(val=None))
    assert len(model.steps) == 3 * STEPS
    assert model.validations == []


def test_a_missing_split_is_an_error_that_says_how_to_add_it(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    data = make_data(train=None)
    with pytest.raises(ConfigError, match=r"no 'train' split.*train=SplitConfig"):
        make_trainer().fit(Recorder(), data)
    for verb, split in (("test", "test"), ("predict", "predict")):
        with pytest.raises(ConfigError, match=rf"no '{split}' split.*{split}=SplitConfig"):
            getattr(make_trainer(), verb)(Recorder(), data)


def test_a_missing_val_split_is_an_error_for_validate(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    with pytest.raises(ConfigError, match=r"no 'val' split.*val=SplitConfig"):
        make_trainer().validate(Recorder(), make_data(val=None))


# --- resume --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoints(
    make_data: Callable[..., Any],
    make_trainer: Callable[..., pl.Trainer],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """A whole run of 3 epochs: its record, and checkpoints by name."""
    folder = tmp_path_factory.mktemp("checkpoints")
    model = Recorder()
    by_step = Saver(folder, "step-{step}", every_n_train_steps=4)
    by_epoch = Saver(folder, "epoch-{epoch}")
    make_trainer(callbacks=[by_step, by_epoch]).fit(model, make_data())
    return {"model": model} | {path.stem: path for path in folder.glob("*.ckpt")}


@pytest.mark.parametrize("options", [{}, {"max_steps": 30, "max_epochs": -1}], ids=str)
@pytest.mark.parametrize("kind", [Recorder, EstimatingRecorder])
@pytest.mark.parametrize("step", [4, 8, 12, 20, 24])
def test_a_resumed_fit_takes_the_steps_that_are_left(
    step: int,
    kind: type[Recorder],
    options: dict[str, Any],
    checkpoints: dict[str, Any],
    make_data: Callable[..., Any],
    make_trainer: Callable[..., pl.Trainer],
) -> None:
    model, trainer = kind(), make_trainer(**options)
    trainer.fit(model, make_data(), ckpt_path=checkpoints[f"step-step={step}"])
    done = [(epoch, batch) for epoch, batch, _ in checkpoints["model"].steps]
    assert [(epoch, batch) for epoch, batch, _ in model.steps] == done[step:]
    assert trainer.global_step == 3 * STEPS


@pytest.mark.parametrize("step", [4, 8, 12, 24])
def test_a_fit_resumed_within_an_epoch_makes_fresh_draws_and_then_the_same_epochs(
    step: int,
    checkpoints: dict[str, Any],
    make_data: Callable[..., Any],
    make_trainer: Callable[..., pl.Trainer],
) -> None:
    model = Recorder()
    make_trainer().fit(model, make_data(), ckpt_path=checkpoints[f"step-step={step}"])
    whole = checkpoints["model"].epochs()
    epoch = step // STEPS
    resumed = model.epochs()
    assert resumed.pop(epoch) not in (whole[epoch][step % STEPS :], whole[epoch][: -step % STEPS])
    assert resumed == {number: whole[number] for number in range(epoch + 1, 3)}


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_fit_resumed_at_an_epochs_end_goes_on_as_if_it_had_never_stopped(
    epoch: int,
    checkpoints: dict[str, Any],
    make_data: Callable[..., Any],
    make_trainer: Callable[..., pl.Trainer],
) -> None:
    model, data = Recorder(), make_data()
    make_trainer().fit(model, data, ckpt_path=checkpoints[f"epoch-epoch={epoch}"])
    assert model.steps == checkpoints["model"].steps[(epoch + 1) * STEPS :]
    assert len(model.validations) == 2 - epoch
    assert data.starts["train"] == [Cursor(epoch + 1, 0)]


@pytest.mark.parametrize(
    "options",
    [{"val_check_interval": 0.5}, {"limit_train_batches": 8, "val_check_interval": 4}],
    ids=str,
)
@pytest.mark.parametrize("number", range(6))
def test_a_fit_resumed_after_any_validation_takes_the_steps_and_validations_that_are_left(
    number: int,
    options: dict[str, Any],
    make_data: Callable[..., Any],
    make_trainer: Callable[..., pl.Trainer],
    tmp_path: Path,
) -> None:
    """Two validations an epoch, and a checkpoint after each of them."""
    whole, resumed = Recorder(), Recorder()
    saver = Saver(tmp_path, "{step}", save_on_train_epoch_end=False)
    make_trainer(callbacks=[saver], **options).fit(whole, make_data())
    step = (number + 1) * len(whole.steps) // 6
    make_trainer(**options).fit(resumed, make_data(), ckpt_path=tmp_path / f"step={step}.ckpt")
    assert [numbers[:2] for numbers in resumed.steps] == [
        numbers[:2] for numbers in whole.steps[step:]
    ]
    assert resumed.validations == [all_ids(VAL)] * (5 - number)


def test_a_fit_resumed_at_an_epochs_end_goes_on_with_a_split_that_serves_each_sample_once(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer], tmp_path: Path
) -> None:
    whole, resumed = Recorder(), Recorder()
    saver = Saver(tmp_path / "saved", "{epoch}")
    make_trainer(callbacks=[saver]).fit(whole, make_data(sampling="shuffled"))
    make_trainer().fit(
        resumed, make_data(sampling="shuffled"), ckpt_path=tmp_path / "saved" / "epoch=0.ckpt"
    )
    assert resumed.steps == whole.steps[STEPS:]


def test_a_stream_that_serves_each_sample_once_cannot_be_resumed_within_an_epoch_and_says_so(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer], tmp_path: Path
) -> None:
    exact = {"sampling": "shuffled", "reader": "stream"}
    saver = Saver(tmp_path / "saved", "{step}", every_n_train_steps=4)
    make_trainer(max_steps=4, callbacks=[saver]).fit(Recorder(), make_data(**exact))
    with pytest.raises(StateError, match=r"8 samples into an epoch.*sampling='resampled'"):
        make_trainer().fit(
            Recorder(), make_data(**exact), ckpt_path=tmp_path / "saved" / "step=4.ckpt"
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 5}, "made with seed=0, this run has 5"),
        ({"batch_size": 4}, "made with global_batch=2, this run has 4"),
        ({"train": [5, 9, 5]}, r"made with shards='\w+', this run has '\w+'"),
        ({"sampling": "shuffled"}, "made with sampling='resampled', this run has 'shuffled'"),
    ],
    ids=["seed", "global batch", "shards", "sampling"],
)
@pytest.mark.parametrize("kind", [Recorder, EstimatingRecorder])
@pytest.mark.parametrize("checkpoint", ["step-step=4", "epoch-epoch=1"])
def test_a_checkpoint_of_another_run_is_refused_with_both_values_and_the_ways_out(
    checkpoint: str,
    kind: type[Recorder],
    changes: dict[str, Any],
    message: str,
    checkpoints: dict[str, Any],
    make_data: Callable[..., Any],
    make_trainer: Callable[..., pl.Trainer],
    pack_shards: Callable[..., list[str]],
) -> None:
    options = dict(changes)
    if "train" in changes:
        options["train"] = SplitConfig(pack_shards(changes["train"], "train"))
    with pytest.raises(StateError, match=rf"{message}; set it back to resume, or "):
        make_trainer().fit(kind(), make_data(**options), ckpt_path=checkpoints[checkpoint])


def test_a_checkpoint_of_another_run_can_still_be_tested(
    checkpoints: dict[str, Any],
    make_data: Callable[..., Any],
    make_trainer: Callable[..., pl.Trainer],
    pack_shards: Callable[..., list[str]],
) -> None:
    model, data = Recorder(), make_data(seed=5, test=SplitConfig(pack_shards([3], "test")))
    make_trainer().test(model, data, ckpt_path=checkpoints["step-step=4"], verbose=False)
    assert model.tested == all_ids([3])


def test_a_checkpoint_holds_plain_values_and_loads_with_weights_only(
    checkpoints: dict[str, Any],
) -> None:
    checkpoint = torch.load(checkpoints["step-step=12"], weights_only=True)
    state = checkpoint["CountedModule"]
    assert {type(value) for value in state.values()} <= {int, str}
    assert (state["epoch"], state["samples"], state["seed"]) == (1, 4, 0)


@pytest.mark.parametrize(
    ("name", "epoch", "samples"),
    [("step-step=4", 0, 8), ("step-step=20", 2, 0), ("epoch-epoch=0", 1, 0)],
)
def test_a_checkpoint_knows_the_samples_of_the_epoch_that_were_trained(
    name: str, epoch: int, samples: int, checkpoints: dict[str, Any]
) -> None:
    state = torch.load(checkpoints[name], weights_only=True)["CountedModule"]
    assert (state["epoch"], state["samples"]) == (epoch, samples)


def test_a_checkpoint_of_an_exception_counts_the_trained_steps_alone(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer], tmp_path: Path
) -> None:
    class Failing(Recorder):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if batch_idx == 6:
                self.trainer.save_checkpoint(tmp_path / "failed.ckpt")
                raise ArithmeticError
            return super().training_step(batch, batch_idx)

    with pytest.raises(ArithmeticError):
        make_trainer().fit(Failing(), make_data())
    state = torch.load(tmp_path / "failed.ckpt", weights_only=True)["CountedModule"]
    assert (state["epoch"], state["samples"]) == (0, 12)
    resumed = Recorder()
    make_trainer(max_epochs=1).fit(resumed, make_data(), ckpt_path=tmp_path / "failed.ckpt")
    assert [batch for _, batch, _ in resumed.steps] == [6, 7, 8, 9]


# --- what the batches look like to the module ----------------------------------------------------


def negative(images: torch.Tensor) -> torch.Tensor:
    return 255 - images


@pytest.mark.parametrize("batch_format", ["dict", "tuple"])
@pytest.mark.parametrize("verb", ["fit", "test", "predict"])
def test_device_transforms_run_and_then_the_modules_own_hook(
    verb: str,
    batch_format: str,
    make_data: Callable[..., Any],
    make_trainer: Callable[..., pl.Trainer],
    pack_shards: Callable[..., list[str]],
) -> None:
    class Module(Recorder):
        batches: list[Any]

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            images, labels = batch.values() if isinstance(batch, dict) else batch
            return {"image": images.float() / 255, "label": labels, "hook ran": True}

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.batches.append(batch)
            return self._loss(batch)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.batches.append(batch)

        test_step = validation_step

        def predict_step(self, batch: Any, batch_idx: int) -> list[int]:
            self.batches.append(batch)
            return batch["label"].tolist()

    class ImageAndLabel(ShardDataModule):
        """Hands the module's hook nothing but image and label, also of a dict."""

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            if isinstance(batch, dict):
                batch = {name: batch[name] for name in ("image", "label")}
            return super().on_after_batch_transfer(batch, dataloader_idx)

    model = Module()
    model.batches = []
    more = SplitConfig(pack_shards([3], "more"))
    data = make_data(
        ImageAndLabel,
        device_transforms={"image": negative},
        batch_format=batch_format,
        test=more,
        predict=more,
    )
    getattr(make_trainer(max_epochs=1), verb)(model, data)
    assert len(model.batches) == {"fit": STEPS + 2 + VAL_STEPS, "test": 2, "predict": 2}[verb]
    for batch in model.batches:
        assert batch["hook ran"]
        # sample number i has the value i, here below 20, and the class i % 10
        numbers = (255 - 255 * batch["image"][:, 0, 0, 0]).round().long()
        assert numbers.max() < 20
        assert numbers.remainder(10).tolist() == batch["label"].tolist()


def test_a_tuple_batch_has_the_fields_in_their_order(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    class Module(TrainsOnly):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            labels, images = batch
            assert (labels.shape, images.shape) == ((2,), (2, 1, 4, 4))
            assert images.dtype == torch.uint8
            self.steps.append((self.current_epoch, batch_idx, []))
            return self._loss({"image": images, "label": labels})

    model = Module()
    fields = {"label": "cls", "image": "png"}
    make_trainer().fit(model, make_data(val=None, fields=fields, batch_format="tuple"))
    assert len(model.steps) == 3 * STEPS


def test_device_transforms_of_a_split_with_its_own_fields_find_them_in_its_order(
    make_data: Callable[..., Any],
    make_trainer: Callable[..., pl.Trainer],
    pack_shards: Callable[..., list[str]],
) -> None:
    class Module(Recorder):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            labels, images = batch
            self.validations.append((255 - images[:, 0, 0, 0].long()).tolist())
            assert labels.tolist() == [number % 10 for number in self.validations[-1]]

    val = SplitConfig(pack_shards(VAL, "val"), fields={"label": "cls", "image": "png"})
    data = make_data(val=val, batch_format="tuple", device_transforms={"image": negative})
    model = Module()
    make_trainer().validate(model, data, verbose=False)
    assert list(chain(*model.validations)) == list(range(7))


# --- workers -------------------------------------------------------------------------------------


def living_children() -> set[int]:
    found: set[int] = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture
def keep_sigint() -> Iterator[None]:
    """Lightning ignores the signal for good after a KeyboardInterrupt."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


class Failing(Recorder):
    """Notes which processes there are, late in a stage, and raises."""

    def __init__(self, stage: str, error: type[BaseException] | None) -> None:
        super().__init__()
        self.stage, self.error = stage, error
        self.running: set[int] = set()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.fail(self.stage == "training_step" and batch_idx == 3)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.fail(self.stage == "validation_step" and self.current_epoch == 1)
        super().validation_step(batch, batch_idx)

    def fail(self, is_due: bool) -> None:
        if is_due:
            self.running |= living_children()
            if self.error is not None:
                raise self.error


@pytest.mark.parametrize("error", [None, ArithmeticError, KeyboardInterrupt], ids=str)
@pytest.mark.parametrize("stage", ["training_step", "validation_step"])
@pytest.mark.usefixtures("keep_sigint")
def test_no_worker_outlives_a_fit_however_it_ends(
    stage: str,
    error: type[BaseException] | None,
    make_data: Callable[..., Any],
    make_trainer: Callable[..., pl.Trainer],
) -> None:
    before = living_children()
    model = Failing(stage, error)
    loader = LoaderConfig(multiprocessing_context="fork")
    data = make_data(ShardDataModule, num_workers=2, loader=loader)
    # SystemExit is what Lightning makes of a KeyboardInterrupt
    with pytest.raises((ArithmeticError, SystemExit)) if error else nullcontext():
        make_trainer(max_epochs=2).fit(model, data)
    assert len(model.running - before) >= 2  # there were workers to end
    assert living_children() - before == set()


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_no_worker_of_a_loader_outlives_a_fit_that_was_given_the_loader_alone(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    before = living_children()
    model = Failing("training_step", None)
    config = LoaderConfig(multiprocessing_context="fork")
    loader = make_data(ShardDataModule, num_workers=2, loader=config).loader("train")
    make_trainer(max_epochs=2, limit_val_batches=0).fit(model, loader)
    assert len(model.running - before) == 2
    assert living_children() - before == set()


def test_workers_go_on_while_the_model_validates(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    class Watching(Recorder):
        workers: dict[int, set[int]]

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            workers = self.trainer.datamodule._loaders["train"]._standing.stream._workers
            self.workers.setdefault(self.current_epoch, set()).update(each.pid for each in workers)

    model = Watching()
    model.workers = {}
    loader = LoaderConfig(multiprocessing_context="fork")
    make_trainer().fit(model, make_data(ShardDataModule, num_workers=2, loader=loader))
    assert model.workers[0] == model.workers[1] == model.workers[2]
    assert len(model.workers[0]) == 2


def test_memory_is_not_pinned_for_the_cpu(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    loader = LoaderConfig(multiprocessing_context="fork")
    data, trainer = make_data(ShardDataModule, num_workers=1, loader=loader), make_trainer()
    trainer.fit(Recorder(), data)
    assert not data._loaders["train"].pool.pin_memory
    assert not data._loaders["val"].pool.pin_memory


def test_samples_and_steps_do_not_depend_on_who_makes_the_batches_under_sequential(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    """Evaluation sees the same samples from the trainer's own thread and from workers."""
    seen: list[Counter[tuple[int, int]]] = []
    loader = LoaderConfig(multiprocessing_context="fork")
    for num_workers in (0, 1, 2):
        model = Recorder()
        data = make_data(ShardDataModule, num_workers=num_workers, loader=loader)
        make_trainer().validate(model, data, verbose=False)
        seen.append(Counter(model.validations[0]))
    assert seen == [Counter(all_ids(VAL))] * 3


def test_the_number_of_workers_can_change_between_two_fits(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    data = make_data(ShardDataModule, loader=LoaderConfig(multiprocessing_context="fork"))
    pools: list[int] = []
    for num_workers in (0, 2):
        data.num_workers = num_workers
        model = Recorder()
        make_trainer(max_epochs=1).fit(model, data)
        assert len(model.steps) == STEPS
        pools.append(data._loaders["train"].pool.num_workers)
    assert pools == [1, 2]
