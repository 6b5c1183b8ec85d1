"""Weights that change: where they hold, and which of them may change in a resumed run."""

import numpy as np
import pytest
from small_mixtures import component, example_mixture, mixture

from lightning_shards.errors import ConfigError, StateError
from lightning_shards.plan.mixture_schedule import WeightChange, schedule_mixture

WEIGHTS = {"web": 5, "labels": 2, "synth": 1}


def schedule(*changes, weights=WEIGHTS, round_units=8, unit=1, epoch_samples=800):
    return schedule_mixture(
        weights, changes, round_units=round_units, unit=unit, epoch_samples=epoch_samples
    )


def stages_of(schedule):
    """First round and weights by name of each stage."""
    return [
        (stage.first_round, dict(zip(schedule.names, stage.weights, strict=True)))
        for stage in schedule.stages
    ]


def quotas(schedule, rounds):
    """Units of each round, by name."""
    units = np.diff(schedule.counts(0, rounds), axis=0).tolist()
    return [dict(zip(schedule.names, each, strict=True)) for each in units]


def test_the_example_of_the_module():
    fives = schedule(weights={"a": 5, "b": 2, "c": 1}, round_units=4)
    assert quotas(fives, 4) == [
        {"a": 2, "b": 1, "c": 1},
        {"a": 3, "b": 1, "c": 0},
        {"a": 2, "b": 1, "c": 1},
        {"a": 3, "b": 1, "c": 0},
    ]


def test_stages_begin_at_epochs_and_at_whole_rounds_of_samples():
    changes = (
        WeightChange({"web": 1}, samples=79),
        WeightChange({"labels": 1, "synth": 3}, epoch=2),
    )
    assert stages_of(schedule(*changes)) == [
        (0, WEIGHTS),
        (9, {"web": 1, "labels": 0, "synth": 0}),
        (200, {"web": 0, "labels": 1, "synth": 3}),
    ]


def test_units_make_rounds_longer():
    changed = schedule(WeightChange({"web": 1}, samples=79), unit=4)
    assert [stage.first_round for stage in changed.stages] == [0, 2]
    assert changed.round_samples == 32


def test_a_way_over_several_steps_is_equal_steps():
    to_labels = WeightChange({"labels": 1}, samples=320, over=4)
    weights = {"web": 3, "labels": 1}
    assert stages_of(schedule(to_labels, weights=weights)) == [
        (0, {"web": 3, "labels": 1}),
        (10, {"web": 9, "labels": 7}),
        (20, {"web": 3, "labels": 5}),
        (30, {"web": 3, "labels": 13}),
        (40, {"web": 0, "labels": 1}),
    ]


def test_a_second_way_begins_at_the_stage_before():
    changes = (
        WeightChange({"web": 1}, samples=80),
        WeightChange({"labels": 1}, samples=160, over=2),
    )
    assert stages_of(schedule(*changes, weights={"web": 1, "labels": 1}))[1:] == [
        (10, {"web": 1, "labels": 0}),
        (15, {"web": 1, "labels": 1}),
        (20, {"web": 0, "labels": 1}),
    ]


def test_a_change_to_the_same_weights_is_none():
    same = WeightChange({"web": 0.5, "labels": 0.2, "synth": 0.1}, epoch=1)
    assert schedule(same) == schedule()


def test_counts_agree_however_they_are_cut():
    changes = (
        WeightChange({"web": 1, "labels": 1}, samples=72),
        WeightChange({"synth": 2, "web": 5}, samples=160, over=3),
    )
    changing = schedule(*changes)
    whole = changing.counts(0, 60)
    assert whole.sum(axis=1).tolist() == [8 * each for each in range(61)]
    for first in range(60):
        assert changing.counts(first, 60).tolist() == whole[first:].tolist()
        assert changing.counts(first, first).tolist() == whole[first : first + 1].tolist()


def test_far_counts_are_exact():
    counts = schedule(weights={"a": 10**6, "b": 1}, round_units=4096).counts(2**49, 2**49 + 1)
    units = 2**49 * 4096
    share = (2 * units + 10**6 + 1) // (2 * (10**6 + 1))
    assert counts[0].tolist() == [units - share, share]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (WeightChange({"web": 1}), "got epoch=None and samples=None; give one"),
        (WeightChange({"web": 1}, epoch=1, samples=8), "got epoch=1 and samples=8; give one"),
        (
            WeightChange({"web": 1}, epoch=0),
            "begins in the first round of the run, which has .* samples, where .*; write its",
        ),
        (WeightChange({"web": 1}, epoch=-1), "got one at sample -800 of the run behind one at 0;"),
        (
            WeightChange({"web": 1}, samples=7),
            "first round of the run, which has 8 samples, where the components' own weights hold;",
        ),
        (WeightChange({"web": 1}, epoch=1, over=0), "over must be from 1 to the 100 .*, got 0;"),
        (
            WeightChange({"web": 1}, epoch=1, over=101),
            "over must be from 1 .*, got 101; take fewer",
        ),
        (
            WeightChange({"web": 1}, epoch=2**60),
            r"before sample 2\*\*62 of the run, got epoch=1152921504606846976 of 800 .*; let",
        ),
        (WeightChange({"web": 1}, samples=2**62), r"run, got samples=4611686018427387904; let it"),
        (WeightChange({"wep": 1}, epoch=1), "got 'wep'; its components are web, labels, synth"),
        (WeightChange({"web": 0}, epoch=1), "web, labels, synth are all 0;"),
        (WeightChange({"web": -1}, epoch=1), "weight of 'web' must be .*, got -1;"),
        (
            WeightChange({"web": 3, "labels": 3, "synth": 3.1}, epoch=1),
            "round=5 .* synth=31, web=30 from sample 800 of the run on; the least round is 6",
        ),
    ],
)
def test_impossible_changes_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        schedule(change, round_units=5 if "the least" in message else 8)


def test_stages_out_of_order_are_refused():
    second, first = WeightChange({"web": 1}, epoch=2), WeightChange({"labels": 1}, epoch=1)
    with pytest.raises(ConfigError, match="got one at sample 800 of the run behind one at 1600;"):
        schedule(second, first)


# A resumed run. Stages begin at samples 72 and 96; an epoch has 24.

CHANGES = (
    WeightChange({"web": 1, "labels": 1}, samples=72),
    WeightChange({"synth": 1, "web": 3}, epoch=4),
)


def saved():
    return example_mixture(changes=CHANGES).identity()


@pytest.mark.parametrize("trained", [0, 8, 72, 73, 96, 97, 500])
def test_the_same_mixture_may_go_on(trained):
    example_mixture(changes=CHANGES).mixture_identity.require_resumable(saved(), trained)


LATER = (
    CHANGES[:1],
    (*CHANGES, WeightChange({"web": 1}, epoch=7)),
    (CHANGES[0], WeightChange({"web": 1}, epoch=4)),
    (CHANGES[0], WeightChange({"labels": 1}, samples=88), CHANGES[1]),
)


@pytest.mark.parametrize("changes", LATER)
def test_stages_behind_the_trained_samples_may_be_others(changes):
    order = example_mixture(changes=changes)
    order.mixture_identity.require_resumable(saved(), 88)
    before = example_mixture(changes=CHANGES)
    assert order.at(3, 0, 16).tolist() == before.at(3, 0, 16).tolist()
    with pytest.raises(StateError):
        order.mixture_identity.require_resumable(saved(), 200)


def test_a_stage_before_names_the_first_sample_that_may_change():
    order = example_mixture(changes=(WeightChange({"web": 1}, samples=72), CHANGES[1]))
    with pytest.raises(StateError) as error:
        order.mixture_identity.require_resumable(saved(), 73)
    assert str(error.value) == (
        "the checkpoint was made with the weights labels=1, web=1 from sample 72 of the run on, "
        "this run has the weights web=1 from sample 72 of the run on; 73 samples of the run are "
        "trained, so weights may change from sample 80 of the run on: set the stages before it "
        "back, or start anew without the loader's state"
    )


def test_a_stage_removed_or_added_before_is_refused():
    with pytest.raises(StateError, match="this run has no other stage; 73 samples of the run"):
        example_mixture().mixture_identity.require_resumable(saved(), 73)
    with pytest.raises(StateError, match="made with no other stage, this run has the weights la"):
        example_mixture(changes=CHANGES).mixture_identity.require_resumable(
            example_mixture().identity(), 73
        )


def test_the_weights_from_the_start_may_change_until_a_sample_is_trained():
    other = mixture(example_mixture().mix, {"web": 2, "labels": 3, "synth": 3})
    other.mixture_identity.require_resumable(example_mixture().identity(), 0)
    with pytest.raises(StateError, match="may change from sample 8 of the run on"):
        other.mixture_identity.require_resumable(example_mixture().identity(), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "made with seed=0, this run has 1; set it back"),
        ({"rounds": 4}, "made with dataset_size=24, this run has 32; set it back"),
        ({"round_units": 12, "rounds": 2}, "made with round=8, this run has 12; set it back"),
        ({"unit": 3, "rounds": 1}, "made with unit=1, this run has 3; set it back"),
    ],
)
def test_what_cannot_change_is_refused(changes, message):
    with pytest.raises(StateError, match=message):
        example_mixture(**changes).mixture_identity.require_resumable(saved(), 0)


def with_component(order, name, **changes):
    """The same mixture with another order or more shards under a name."""
    parts = [component(name, **changes) if each.name == name else each for each in order.mix]
    return mixture(parts, WEIGHTS)


@pytest.mark.parametrize(
    ("changes", "was", "now"),
    [
        ({"counts": [5, 0], "sampling": "shuffled"}, "sampling=sequential", "sampling=shuffled"),
        ({"counts": [2, 4], "sampling": "sequential"}, "samples=5", "samples=6"),
        ({"counts": [2, 3, 0], "sampling": "sequential"}, "num_shards=2", "num_shards=3"),
        (
            {"counts": [2, 3], "sampling": "sequential", "block": 9},
            *("shuffle_block=8", "shuffle_block=9"),
        ),
    ],
)
def test_another_component_under_its_name_is_refused_by_what_differs(changes, was, now):
    order = example_mixture()
    other = with_component(order, "labels", **changes)
    with pytest.raises(StateError, match=rf"'labels' of {was}, this run has {now}; set it back"):
        other.mixture_identity.require_resumable(order.identity(), 1)


def test_a_component_without_weight_before_may_be_added_and_removed():
    order = example_mixture()
    weights = WEIGHTS | {"late": 0}
    later = [WeightChange({"late": 1, "web": 1}, samples=48)]
    more = mixture([*order.mix, component("late", [30])], weights, later)
    more.mixture_identity.require_resumable(order.identity(), 48)
    order.mixture_identity.require_resumable(more.identity(), 48)
    with pytest.raises(StateError, match="late=1, web=1 from sample 48"):
        order.mixture_identity.require_resumable(more.identity(), 49)


def test_another_order_of_names_may_go_on():
    order = example_mixture()
    mixture(order.mix[::-1], WEIGHTS).mixture_identity.require_resumable(order.identity(), 1000)


@pytest.mark.parametrize("stages", [None, 7, "", "[]", "[[0]]", "{}", "[1, 2]", '[["a", {}]]'])
def test_damaged_stages_are_refused(stages):
    with pytest.raises(
        StateError, match=r"stages in the checkpoint must be .*; it is damaged: resu"
    ):
        example_mixture().mixture_identity.require_resumable(saved() | {"stages": stages}, 1)
