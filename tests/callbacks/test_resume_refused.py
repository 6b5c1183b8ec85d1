"""Checkpoints that do not say where they stand, or that are damaged: refused, with the ways out."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from toy import Ledger, ToyData, bare_trainer, make_trainer, positions_of

from lightning_shards import ExactResume
from lightning_shards.errors import ConfigError, StateError


class RenamedData(ToyData):
    """Lightning keeps a data module's state under the name of its class."""


@pytest.fixture(scope="module")
def saved_bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of a fit without ExactResume by step."""
    folder = tmp_path_factory.mktemp("bare")
    saver = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    by_epoch = ModelCheckpoint(folder, "{epoch}", every_n_epochs=1, save_top_k=-1)
    bare_trainer(folder, callbacks=[saver, by_epoch]).fit(Ledger(), ToyData())
    return {path.stem: path for path in folder.glob("*.ckpt")}


def without_our_state(path: Path, folder: Path) -> Path:
    """A checkpoint as a data module that is none of ours would have left it."""
    checkpoint = torch.load(path, weights_only=True)
    checkpoint.pop("ToyData")
    checkpoint["loops"]["fit_loop"]["state_dict"] = {}
    torch.save(checkpoint, folder / "foreign.ckpt")
    return folder / "foreign.ckpt"


MAKERS = pytest.mark.parametrize("make", [bare_trainer, make_trainer])


@MAKERS
@pytest.mark.parametrize("step", [1, 4, 9])
@pytest.mark.parametrize("batch_size", [2, 8])
def test_a_renamed_data_module_with_another_batch_size_is_refused_within_an_epoch(
    batch_size: int, step: int, make: Any, saved_bare: dict[str, Path], tmp_path: Path
) -> None:
    message = rf"global_batch=4, this run has {batch_size}; .*ExactResume\(\)"
    with pytest.raises(StateError, match=message):
        make(tmp_path).fit(Ledger(), RenamedData(batch_size), ckpt_path=saved_bare[f"step={step}"])


@MAKERS
def test_a_renamed_data_module_with_the_same_batch_size_goes_on(
    make: Any, saved_bare: dict[str, Path], tmp_path: Path
) -> None:
    model = Ledger()
    make(tmp_path).fit(model, RenamedData(), ckpt_path=saved_bare["step=9"])
    assert positions_of(model.steps) == {epoch: list(range(24)) for epoch in range(3)}


@MAKERS
@pytest.mark.parametrize("step", [1, 11])
@pytest.mark.parametrize("batch_size", [2, 4, 8])
@pytest.mark.parametrize("estimates", [False, True])
def test_a_checkpoint_without_our_state_is_refused_within_an_epoch(
    estimates: bool,
    batch_size: int,
    step: int,
    make: Any,
    saved_bare: dict[str, Path],
    tmp_path: Path,
) -> None:
    path = without_our_state(saved_bare[f"step={step}"], tmp_path)
    data = ToyData(batch_size)
    with pytest.raises(StateError, match=r"before its end.* how many samples .*weights alone"):
        make(tmp_path).fit(Ledger(estimates=estimates), data, ckpt_path=path)


@MAKERS
@pytest.mark.parametrize("name", ["step=12", "epoch=0"])
@pytest.mark.parametrize("batch_size", [2, 4, 8])
def test_a_checkpoint_without_our_state_resumes_at_an_epochs_end(
    batch_size: int, name: str, make: Any, saved_bare: dict[str, Path], tmp_path: Path
) -> None:
    path, model = without_our_state(saved_bare[name], tmp_path), Ledger()
    if name.startswith("step") and batch_size == 2:
        # its epoch has yet to end, and Lightning would go on with batch 7 of 13 of the next one
        with pytest.raises(StateError, match="after batch 6 of an epoch, before its end"):
            make(tmp_path).fit(model, ToyData(batch_size), ckpt_path=path)
        return
    make(tmp_path).fit(model, ToyData(batch_size), ckpt_path=path)
    done = {"step=6": 1, "step=12": 2, "epoch=0": 1, "epoch=1": 2}[name]
    ends = [24] * done + [26 - 26 % batch_size] * (3 - done)
    assert positions_of(model.steps) == {epoch: list(range(end)) for epoch, end in enumerate(ends)}


@pytest.mark.parametrize("batch_size", [2, 8])
def test_without_it_now_its_state_does_not_hide_another_batch_size(
    batch_size: int, saved: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(StateError, match=rf"global_batch=4, this run has {batch_size}"):
        bare_trainer(tmp_path).fit(Ledger(), RenamedData(batch_size), ckpt_path=saved["step=4"])


@MAKERS
@pytest.mark.parametrize("is_same_trainer", [False, True])
def test_what_an_earlier_fit_was_resumed_from_says_nothing_of_this_one(
    is_same_trainer: bool,
    make: Any,
    saved: dict[str, Path],
    saved_bare: dict[str, Path],
    tmp_path: Path,
) -> None:
    data, trainer = ToyData(), make(tmp_path)
    trainer.fit(Ledger(), data, ckpt_path=saved["step=17"])
    path = without_our_state(saved_bare["step=4"], tmp_path)
    with pytest.raises(StateError, match="how many samples"):
        (trainer if is_same_trainer else make(tmp_path)).fit(Ledger(), data, ckpt_path=path)


@MAKERS
def test_a_loader_of_an_earlier_fit_with_another_batch_size_is_not_compared(
    make: Any, saved_bare: dict[str, Path], tmp_path: Path
) -> None:
    data, model = ToyData(8), Ledger()
    bare_trainer(tmp_path, max_epochs=1).fit(Ledger(), data)
    data.batch_size = 4
    make(tmp_path).fit(model, data, ckpt_path=saved_bare["step=9"])
    assert positions_of(model.steps) == {epoch: list(range(24)) for epoch in range(3)}


# --- damaged states ------------------------------------------------------------------------------

MISSING = object()
HUGE = pytest.param(2**2000, id="of 600 digits")  # the most that a file of plain values holds


def damaged(path: Path, folder: Path, name: str, value: object) -> Path:
    """A checkpoint with one value of ExactResume's state changed, or without it."""
    checkpoint = torch.load(path, weights_only=True)
    state = checkpoint["callbacks"]["ExactResume"]
    if value is MISSING:
        state.pop(name)
    else:
        state[name] = value
    torch.save(checkpoint, folder / "damaged.ckpt")
    return folder / "damaged.ckpt"


@pytest.mark.parametrize("value", [MISSING, "3", -1, True, HUGE])
@pytest.mark.parametrize("name", ["epoch", "samples", "ended", "batches", "validation"])
def test_a_damaged_value_is_named_with_what_it_should_be(
    name: str, value: object, saved: dict[str, Path], tmp_path: Path
) -> None:
    path = damaged(saved["step=9"], tmp_path, name, value)
    with pytest.raises(
        StateError, match=rf"^{name} in the checkpoint must be .*, got .*: resume f"
    ):
        make_trainer(tmp_path).fit(Ledger(), ToyData(), ckpt_path=path)


@pytest.mark.parametrize(("name", "value"), [("samples", 27), ("ended", 2), ("epoch", 3)])
def test_a_number_that_cannot_be_beside_the_others_is_refused(
    name: str, value: int, saved: dict[str, Path], tmp_path: Path
) -> None:
    path = damaged(saved["step=9"], tmp_path, name, value)
    with pytest.raises(StateError, match="must be a whole number from"):
        make_trainer(tmp_path).fit(Ledger(), ToyData(), ckpt_path=path)


@pytest.mark.parametrize("value", [MISSING, [], pytest.param("x" * 10**6, id="long")])
@pytest.mark.parametrize("name", ["version", "seed", "shards", "epoch_samples"])
def test_a_damaged_identity_is_refused_in_a_message_of_some_lines(
    name: str, value: object, saved: dict[str, Path], tmp_path: Path
) -> None:
    path = damaged(saved["step=9"], tmp_path, name, value)
    told = "epochs of" if name == "epoch_samples" else f"{name}="
    with pytest.raises(StateError, match=f"made with {told}") as caught:
        make_trainer(tmp_path).fit(Ledger(), ToyData(), ckpt_path=path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("key", ["ExactResume", "ToyData"])
@pytest.mark.parametrize("state", [[], "state", 3, [1, 2]], ids=str)
def test_a_state_that_is_no_dict_is_refused(
    state: object, key: str, saved: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = torch.load(saved["step=9"], weights_only=True)
    place = checkpoint["callbacks"] if key == "ExactResume" else checkpoint
    place[key] = state
    torch.save(checkpoint, tmp_path / "damaged.ckpt")
    with pytest.raises(StateError, match=f"state of {key} must be a dict of plain values, got"):
        make_trainer(tmp_path).fit(Ledger(), ToyData(), ckpt_path=tmp_path / "damaged.ckpt")


def test_the_callback_given_twice_is_refused(tmp_path: Path) -> None:
    class Own(ExactResume):
        pass

    with pytest.raises(ConfigError, match=r"callbacks have 2 of ExactResume, .*; keep one"):
        make_trainer(tmp_path, [Own()], enable_checkpointing=False).fit(Ledger(), ToyData())


@MAKERS
def test_counters_of_lightnings_own_that_are_missing_are_named(
    make: Any, saved: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = torch.load(saved["step=9"], weights_only=True)
    checkpoint["loops"]["fit_loop"] = {}
    torch.save(checkpoint, tmp_path / "damaged.ckpt")
    with pytest.raises(StateError, match=r"counters of Lightning's own .*\(KeyError: 'epoch_"):
        make(tmp_path).fit(Ledger(estimates=True), ToyData(), ckpt_path=tmp_path / "damaged.ckpt")
