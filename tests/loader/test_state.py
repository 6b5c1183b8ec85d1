"""The state of a loader: what was handed out, restored, and refused of another run."""

import io
import json

import pytest
import torch
from numbered_batches import NumberedSource, RoundRobinPool, make_loader

from lightning_shards import Place, ShardLoader
from lightning_shards.errors import StateError
from lightning_shards.plan.epoch import EpochSchedule


def test_the_state_counts_what_was_handed_out():
    loader = make_loader()
    for _batch in zip(range(2), loader, strict=False):
        pass
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (0, 4)


def test_the_state_is_plain_enough_for_json_and_weights_only():
    loader = make_loader(identity={"seed": 3, "shards": "abc"})
    list(loader)
    state = loader.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == json.loads(json.dumps(state)) == state


@pytest.mark.parametrize("samples", [0, 4], ids=["a whole epoch", "behind its end"])
def test_an_epoch_before_that_of_the_state_is_refused_until_another_is_set(samples):
    restored = make_loader().with_epoch(1)
    state = {**restored.state_dict(), "epoch": 6 if samples == 0 else 5, "samples": samples}
    restored.load_state_dict(state)
    restored.set_epoch(5)
    for _ in range(2):
        with pytest.raises(StateError, match=r"in epoch 6, .* epoch 5, .* from loader.epoch, "):
            next(iter(restored))
    assert restored.state_dict() == state
    restored.set_epoch(6)
    assert list(restored) == [(6, 0)]
    restored.set_epoch(2)  # whoever has begun may go back
    assert list(restored) == [(2, 0)]


def test_a_trainer_may_name_an_epoch_that_it_does_not_begin():
    """Lightning ends an epoch that was saved after its last batch, and then begins the next."""
    restored = make_loader()
    restored.load_state_dict({**restored.state_dict(), "epoch": 6, "samples": 0})
    for epoch in (5, 6):
        restored.batch_sampler.sampler.set_epoch(epoch)
    assert next(iter(restored)) == (6, 0)


def test_a_trainer_that_was_given_the_loader_by_hand_resumes_in_no_epoch():
    restored = make_loader()
    restored.load_state_dict({**restored.state_dict(), "epoch": 6, "samples": 2})
    with pytest.raises(StateError, match=r"after 2 samples of epoch 6, .*datamodule="):
        restored.batch_sampler.sampler.set_epoch(6)
    restored.batch_sampler.sampler.set_epoch(7)  # where the trainer cut epoch 6
    assert next(iter(restored)) == (7, 0)


@pytest.mark.parametrize(
    ("name", "value"), [("seed", 8), ("shards", "other"), ("version", 0), ("seed", None)]
)
def test_a_state_of_another_run_is_refused(name, value):
    loader = make_loader(identity={"seed": 7, "shards": "abc"})
    state = loader.state_dict()
    other = {**state, name: value}
    with pytest.raises(StateError) as caught:
        loader.load_state_dict(other)
    assert f"{name}={value!r}, this run has {state[name]!r}" in str(caught.value)
    assert "set it back to resume, or start anew" in str(caught.value)


def make_loader_of_16(reserved, **settings):
    """16 samples, which fill two steps of 4 ranks x 2 samples."""
    source = NumberedSource(EpochSchedule(16, **({"batch_size": 2} | settings)), reserved=reserved)
    return ShardLoader(source, RoundRobinPool(), Place(0, 4))


REST_OF_4 = {"epoch": 0, "samples": 12, "epoch_samples": 16, "global_batch": 4, "version": 1}


@pytest.mark.parametrize("reserved", [(), ("__key__", "__id__")], ids=["tuples", "batch_keys"])
@pytest.mark.parametrize(
    ("remainder", "samples", "padded"), [("pad", 12, 4), ("pad", 7, 7), ("balanced", 13, 5)]
)
def test_a_rest_with_repeats_that_batches_do_not_tell_is_refused_on_all_ranks(
    remainder, samples, padded, reserved
):
    loader = make_loader_of_16(reserved, remainder=remainder)  # rank 0 has no repeat
    assert not loader.plan.padded
    message = rf"after {samples} samples .*{remainder!r} fills .* {padded} repeats, .* batch_keys"
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(REST_OF_4 | {"samples": samples})


@pytest.mark.parametrize(
    ("reserved", "settings", "samples"),
    [
        (("__weight__",), {"remainder": "pad"}, 12),
        ((), {"remainder": "drop"}, 12),
        ((), {"remainder": "pad"}, 8),
        ((), {"remainder": "balanced"}, 12),
        ((), {"remainder": "pad", "limit": 1}, 7),
        ((), {"remainder": "pad"}, 16),
    ],
    ids=["told", "dropped", "whole steps", "balanced", "not reached", "nothing left"],
)
def test_a_rest_whose_repeats_are_told_or_not_there_is_resumed(reserved, settings, samples):
    loader = make_loader_of_16(reserved, **settings)
    loader.load_state_dict(REST_OF_4 | {"samples": samples})
    assert loader.state_dict()["samples"] == samples


MISSING = "nothing"


@pytest.mark.parametrize("value", [MISSING, None, "2", -1, 1.5, True, 2**70, [0]], ids=str)
@pytest.mark.parametrize("name", ["epoch", "samples"])
def test_a_damaged_number_is_named_with_what_it_should_be(name, value):
    loader = make_loader()
    state = loader.state_dict() | {name: value}
    if value == MISSING:
        del state[name]
    with pytest.raises(StateError, match=rf"^{name} in the checkpoint must be a whole number from"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("samples", [3, 10])
def test_epochs_of_another_length_are_refused_and_the_setting_is_named(samples):
    loader = make_loader()
    state = {**loader.state_dict(), "epoch_samples": samples, "samples": samples - 1}
    message = rf"epoch_samples={samples}, this run has 7;.* set dataset_size back"
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(state)


@pytest.mark.parametrize("state", [None, 3, "state", [1]])
def test_a_state_that_is_no_dict_is_refused(state):
    with pytest.raises(StateError, match="must be a dict of plain values, got"):
        make_loader().load_state_dict(state)
