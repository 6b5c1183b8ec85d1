"""ExactResume: its state, what it refuses, and what it resumes; `tests/resume` has the chains."""

from pathlib import Path

import pytest
import torch
from toy import (
    Ledger,
    Snapshots,
    StopHereError,
    StopsAt,
    ToyData,
    bare_trainer,
    make_trainer,
    positions_of,
    resumed,
    saved_by_step,
)

from lightning_shards.errors import StateError


class RenamedData(ToyData):
    """Lightning keeps a data module's state under the name of its class."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Checkpoints of a fit by step."""
    return saved_by_step(tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="module")
def saved_bare(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same without ExactResume."""
    return saved_by_step(tmp_path_factory.mktemp("bare"), make=bare_trainer)


# --- the state -----------------------------------------------------------------------------------


def test_the_state_is_plain_and_complete(saved):
    state = torch.load(saved[8], weights_only=True)["callbacks"]["ExactResume"]
    assert state == {
        "version": 1,
        "epoch": 1,
        "samples": 8,
        "ended": 1,
        "validation": "none",
        "batches": 8,
        "epoch_samples": 26,
        "global_batch": 4,
        "order_version": state["order_version"],
        "seed": 0,
        "sampling": "shuffled",
        "shards": "toy-26",
        "image_backend": "pillow",
        "reader": "toy",
    }
    assert {type(value) for value in state.values()} == {int, str}


def test_an_open_accumulation_window_is_not_in_the_state(tmp_path):
    stop = Snapshots(tmp_path, ("on_train_batch_end", 4))  # the second batch of the second window
    with pytest.raises(StopHereError):
        make_trainer(tmp_path, [stop], accumulate_grad_batches=3).fit(Ledger(), ToyData())
    (path,) = stop.saved.values()
    state = torch.load(path, weights_only=True)["callbacks"]["ExactResume"]
    assert state["samples"] == 3 * 4
    model = resumed(tmp_path, path, accumulate_grad_batches=3)
    assert positions_of(model.steps) == {epoch: list(range(24)) for epoch in range(3)}


@pytest.mark.parametrize("stop", [("on_train_batch_end", 7), ("on_train_epoch_end", 2)])
@pytest.mark.parametrize("resumes", [False, True])
def test_the_state_is_complete_after_an_evaluation_too(resumes, stop, saved, tmp_path):
    """Lightning forgets its train loader then."""
    model, data = Ledger(), ToyData()
    trainer = make_trainer(tmp_path, [StopsAt(stop)], enable_checkpointing=False)
    trainer.fit(model, data, ckpt_path=saved[3] if resumes else None)
    states = []
    for name in ("fitted", "validated"):
        trainer.save_checkpoint(tmp_path / f"{name}.ckpt")
        checkpoint = torch.load(tmp_path / f"{name}.ckpt", weights_only=True)
        states.append(checkpoint["callbacks"]["ExactResume"])
        trainer.validate(model, data, verbose=False)
    assert states[1] == states[0]


# --- with and without it -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "batch_size", "told"),
    [
        (9, 4, "sample 12 of 26 in epoch 1, step 3 of 6"),
        (9, 2, "sample 12 of 26 in epoch 1, step 6 of 13"),
        (6, 4, "sample 0 of 26 in epoch 1, step 0 of 6, after the validation that is due"),
    ],
)
def test_the_log_says_where_a_resumed_fit_goes_on(step, batch_size, told, saved, tmp_path, caplog):
    with caplog.at_level("INFO"):
        resumed(tmp_path, saved[step], ToyData(batch_size))
    lines = [line for line in caplog.messages if line.startswith("ExactResume: ")]
    assert lines == [f"ExactResume: goes on at {told}"]


@pytest.mark.parametrize("step", [1, 6, 12])
def test_without_it_another_batch_size_is_refused_and_it_is_named(step, saved, tmp_path):
    with pytest.raises(StateError, match=r"global_batch=4, this run has 2; .*ExactResume\(\)"):
        bare_trainer(tmp_path).fit(Ledger(), ToyData(2), ckpt_path=saved[step])


@pytest.mark.parametrize("estimates", [False, True])
def test_a_checkpoint_made_without_it_resumes_with_the_same_batch_size_alone(
    estimates, saved_bare, tmp_path
):
    path = saved_bare[4]
    model = resumed(tmp_path, path, model=Ledger(estimates=estimates))
    assert positions_of(model.steps) == {epoch: list(range(24)) for epoch in range(3)}
    with pytest.raises(StateError, match=r"global_batch=4, this run has 2; .*ExactResume\(\)"):
        resumed(tmp_path, path, ToyData(2), Ledger(estimates=estimates))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 5}, "seed=0, this run has 5"),
        ({"samples": 27}, "shards='toy-26', this run has 'toy-27'"),
        ({"samples": 27, "batch_size": 2}, "shards='toy-26', this run has 'toy-27'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("has_own_name", [False, True])
def test_another_order_is_refused_with_both_values_and_the_ways_out(
    has_own_name, changes, message, saved, tmp_path
):
    """Also by a data module of another name, which Lightning gives no state."""
    data = (RenamedData if has_own_name else ToyData)(**changes)
    with pytest.raises(StateError, match=rf"{message}; set it back to resume, or start anew"):
        make_trainer(tmp_path).fit(Ledger(), data, ckpt_path=saved[8])


def test_the_settings_of_a_trainer_are_its_own_again_after_a_resume(saved, tmp_path):
    trainer = make_trainer(tmp_path, max_steps=18, val_check_interval=0.5)
    trainer.fit(Ledger(), ToyData(), ckpt_path=saved[18])
    assert (trainer.max_steps, trainer.val_check_batch, trainer.global_step) == (18, 3, 18)


def test_a_validation_that_was_due_after_a_batch_of_another_size_is_run(tmp_path):
    path = saved_by_step(tmp_path, max_steps=3, val_check_interval=3)[3]
    model = resumed(tmp_path, path, ToyData(5), val_check_interval=0.5)
    # after 12 samples, 3 of 5 batches of the new size; else after batches 2 and 4 of an epoch
    assert model.validations[0] == [0, 3, 5]
    assert [each[0] for each in model.validations] == [0, 0, 1, 1, 2, 2]


def test_an_epoch_that_the_batch_size_ends_steps_its_schedule_and_validates(tmp_path):
    """10 of 26 samples are left, which fill no step of 13."""
    path = saved_by_step(tmp_path, Ledger(schedule="epoch"), max_steps=4)[4]
    model = resumed(tmp_path, path, ToyData(13), Ledger(schedule="epoch"))
    assert {(epoch, rate) for epoch, _, rate in model.steps} == {(0, 1.0), (1, 0.5), (2, 0.25)}
    assert positions_of(model.steps)[0] == list(range(16))
    assert [each[:2] for each in model.validations] == [[0, 4], [1, 6], [2, 8]]


@pytest.mark.parametrize(
    ("options", "validated"),
    [
        ({"val_check_interval": 100, "check_val_every_n_epoch": None}, []),
        ({"val_check_interval": 6, "check_val_every_n_epoch": None}, [[1, 6]]),
        ({"val_check_interval": 2}, [[1, 7], [2, 10]]),
        ({"val_check_interval": {"hours": 1}}, []),
        ({"check_val_every_n_epoch": 2}, [[1, 8]]),
    ],
    ids=str,
)
def test_an_epoch_that_the_batch_size_ends_is_not_validated_where_lightning_would_not(
    options, validated, tmp_path
):
    """6 of 26 samples are left, which fill no step of 8; an epoch has 3 of them."""
    path = saved_by_step(tmp_path, max_steps=5, **options)[5]
    model = resumed(tmp_path, path, ToyData(8), **options)
    assert [each[:2] for each in model.validations if each[1] > 4] == validated
    assert positions_of(model.steps) == {0: list(range(20)), 1: list(range(24)), 2: list(range(24))}


# --- checkpoints that do not say where they stand, or that are damaged


@pytest.mark.parametrize("make", [bare_trainer, make_trainer])
@pytest.mark.parametrize("step", [1, 9])
def test_a_renamed_data_module_with_another_batch_size_is_refused_within_an_epoch(
    step, make, saved_bare, tmp_path
):
    with pytest.raises(StateError, match=r"global_batch=4, this run has 8; .*ExactResume\(\)"):
        make(tmp_path).fit(Ledger(), RenamedData(8), ckpt_path=saved_bare[step])


@pytest.mark.parametrize("make", [bare_trainer, make_trainer])
@pytest.mark.parametrize("batch_size", [2, 4])
@pytest.mark.parametrize("estimates", [False, True])
def test_a_checkpoint_without_our_state_is_refused_within_an_epoch(
    estimates, batch_size, make, saved_bare, tmp_path
):
    """As a data module that is none of ours would have left it."""
    checkpoint, data = torch.load(saved_bare[11], weights_only=True), ToyData(batch_size)
    checkpoint.pop("ToyData")
    checkpoint["loops"]["fit_loop"]["state_dict"] = {}
    torch.save(checkpoint, path := tmp_path / "foreign.ckpt")
    with pytest.raises(StateError, match=r"before its end.* how many samples .*weights alone"):
        make(tmp_path).fit(Ledger(estimates=estimates), data, ckpt_path=path)


# --- damaged states ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", None), ("epoch", 3), ("samples", "3"), ("samples", 27), ("ended", -1),
        ("ended", 2), ("batches", True),
    ],
)  # fmt: skip
def test_a_damaged_value_is_named_with_what_it_should_be(name, value, saved, tmp_path):
    checkpoint, path = torch.load(saved[9], weights_only=True), tmp_path / "damaged.ckpt"
    checkpoint["callbacks"]["ExactResume"][name] = value
    torch.save(checkpoint, path)
    with pytest.raises(
        StateError, match=rf"^(?:{name}|ended) in the checkpoint must be .*, got .*: resume f"
    ):
        make_trainer(tmp_path).fit(Ledger(), ToyData(), ckpt_path=path)
