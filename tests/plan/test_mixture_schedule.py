"""Weights that change: where they hold, and which of them may change in a resumed run."""

import pytest
from small_mixtures import component, example_mixture, mixture

from lightning_shards.errors import ConfigError, StateError
from lightning_shards.plan.mixture_schedule import (
    WeightChange,
    check_round,
    default_round,
    epoch_of_mixture,
    schedule_mixture,
    weigh_components,
    weigh_stage,
)

WEIGHTS = {"web": 5, "labels": 2, "synth": 1}


def schedule(*changes, weights=WEIGHTS, round_units=8, unit=1, epoch_samples=800):
    return schedule_mixture(
        weights, changes, round_units=round_units, unit=unit, epoch_samples=epoch_samples
    )


def test_stages_begin_at_epochs_and_at_whole_rounds_of_samples():
    changes = (
        WeightChange({"web": 1}, samples=79),
        WeightChange({"labels": 1, "synth": 3}, epoch=2),
    )
    changing = schedule(*changes)
    assert changing.names == ("labels", "synth", "web")
    stages = [(stage.first_round, stage.weights) for stage in changing.stages]
    assert stages == [(0, (2, 1, 5)), (9, (0, 0, 1)), (200, (1, 3, 0))]


def test_counts_agree_however_they_are_cut():
    changes = (
        WeightChange({"web": 1, "labels": 1}, samples=72),
        WeightChange({"synth": 2, "web": 5}, samples=160),
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
        (WeightChange({"web": 1}, samples=7), "got one at sample 0 of the run behind one at 0;"),
        (WeightChange({"wep": 1}, epoch=1), "got 'wep'; its components are web, labels, synth"),
        (WeightChange({"web": 0}, epoch=1), "web, labels, synth are all 0;"),
        (WeightChange({"web": 3, "labels": 3, "synth": 3.1}, epoch=1), "the least round is 6"),
    ],
)
def test_impossible_changes_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        schedule(change, round_units=5 if "the least" in message else 8)


# A resumed run. Stages begin at samples 72 and 96; an epoch has 24.

CHANGES = (
    WeightChange({"web": 1, "labels": 1}, samples=72),
    WeightChange({"synth": 1, "web": 3}, epoch=4),
)


def saved():
    return example_mixture(changes=CHANGES).identity()


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
    example_mixture(changes=CHANGES).mixture_identity.require_resumable(saved(), 500)
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


# --- weights are exactly what is written


SAMPLES = {"web": 900, "labels": 50, "synth": 10}


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ({"a": 0.3, "b": 0.7}, {"a": 3, "b": 7}),
        ({"a": 0.1, "b": 1e-05}, {"a": 10_000, "b": 1}),
        ({"a": 5, "b": 0}, {"a": 1, "b": 0}),
        ({"a": 0.5, "b": 2}, {"a": 1, "b": 4}),
    ],
)
def test_decimals_are_what_is_written(weights, whole):
    assert weigh_components(dict.fromkeys(weights, 1), weights) == whole
    assert weigh_stage(weights, weights) == whole


def test_a_weight_beside_passes_is_a_number_of_samples():
    """100 samples of synth while the others are passed as often as they say."""
    weights = weigh_components(SAMPLES, {"synth": 100}, {"web": 1, "labels": 2})
    assert weights == {"web": 9, "labels": 1, "synth": 1}


@pytest.mark.parametrize("temperature", [0, 0.3, 1])
def test_a_temperature_is_a_power_of_samples(temperature):
    whole = weigh_components(SAMPLES, {}, temperature=temperature)
    powers = [samples**temperature for samples in SAMPLES.values()]
    for weight, power in zip(whole.values(), powers, strict=True):
        assert abs(weight / sum(whole.values()) - power / sum(powers)) < 2e-6


@pytest.mark.parametrize(
    ("weights", "passes", "temperature", "message"),
    [
        ({"web": -1, "labels": 1, "synth": 1}, {}, None, "weight of 'web' must be .*, got -1;"),
        ({"web": float("nan"), "labels": 1, "synth": 1}, {}, None, "of 'web' must be .*, got nan;"),
        ({"web": True, "labels": 1, "synth": 1}, {}, None, "of 'web' must be .*, got True;"),
        ({"labels": 1, "synth": 1}, {"web": -2}, None, "passes of 'web' must be .*, got -2;"),
        ({"web": 1, "labels": 2}, {"labels": 3}, None, "'labels' .*, got weight=2 and passes=3;"),
        ({"web": 1, "labels": 2}, {}, None, "component 'synth' needs either .*, got neither;"),
        ({"web": 1}, {}, 0.5, "temperature=0.5 takes the place of .*, got some for web; remove"),
        ({}, {}, 5, "temperature must be from 0 to 1, got 5; 1 weighs by samples"),
    ],
)
def test_weights_that_give_no_mixture_are_refused(weights, passes, temperature, message):
    with pytest.raises(ConfigError, match=message):
        weigh_components(SAMPLES, weights, passes, temperature)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "needs at least one component, got none; name one below mix"),
        (["web-2"], "must be an identifier other than .*, got 'web-2'; use letters"),
        (["shortest"], "other than shortest and longest, got 'shortest';"),
    ],
)
def test_names_that_components_cannot_have_are_refused(names, message):
    with pytest.raises(ConfigError, match=message):
        weigh_components(dict.fromkeys(names, 1), dict.fromkeys(names, 1))


@pytest.mark.parametrize(
    ("weights", "units"), [((3, 7), 10), ((1,), 1), ((4_000, 96), 4_096), ((4_000, 97), 4_096)]
)
def test_a_round_is_the_least_in_which_weights_are_whole(weights, units):
    assert default_round({str(weight): weight for weight in weights}) == units


@pytest.mark.parametrize(
    ("units", "weights", "message"),
    [
        (2**20 + 1, (1, 1), "round must be from 1 to 1048576 units, got 1048577;"),
        (4, (1, 1, 1), "round=4 is too short for the weights a=1, b=1, c=1; .* is 3, in which .*6"),
        (7, (30, 29, 28, 27), "round=7 is too short .*; the least round is 12; set round to it"),
    ],
)
def test_a_round_that_is_too_short_names_the_least(units, weights, message):
    with pytest.raises(ConfigError, match=message):
        check_round(units, dict(zip("abcd", weights, strict=False)))


OF_ROUND = {"web": 9, "labels": 1, "synth": 2}  # passes of 100, 50 and 5 x 12 samples


@pytest.mark.parametrize(
    ("asked", "samples"),
    [
        ({"dataset_size": 1_000}, 996),
        ({"epoch_of": "web"}, 1_200),
        ({"epoch_of": "longest"}, 1_200),
        ({"epoch_of": "shortest"}, 60),
    ],
)
def test_an_epoch_is_whole_rounds(asked, samples):
    assert epoch_of_mixture(SAMPLES, OF_ROUND, 12, **asked) == samples


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "either dataset_size or epoch_of, got dataset_size=None and epoch_of=None; give"),
        ({"dataset_size": 9, "epoch_of": "web"}, "got dataset_size=9 and epoch_of='web'; give"),
        ({"dataset_size": 11}, "at least one round of 12 samples, got dataset_size=11; make"),
        ({"epoch_of": "wep"}, "one of web, labels, synth, shortest, longest, .*, got 'wep'; name"),
    ],
)
def test_epochs_that_are_none_are_refused(asked, message):
    with pytest.raises(ConfigError, match=message):
        epoch_of_mixture(SAMPLES, OF_ROUND, 12, **asked)
