"""Weights are exactly what is written, and a round too short for them is refused."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.errors import ConfigError, PlanError
from lightning_shards.plan.mixture_schedule import (
    check_round,
    default_round,
    epoch_of_mixture,
    weigh_components,
    weigh_stage,
)

SAMPLES = {"web": 900, "labels": 50, "synth": 10}


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ({"a": 48, "b": 12}, {"a": 4, "b": 1}),
        ({"a": 0.3, "b": 0.7}, {"a": 3, "b": 7}),
        ({"a": 0.1, "b": 1e-05}, {"a": 10_000, "b": 1}),
        ({"a": 5, "b": 0}, {"a": 1, "b": 0}),
        ({"a": 0.5, "b": 2}, {"a": 1, "b": 4}),
    ],
)
def test_decimals_are_what_is_written(weights, whole):
    assert weigh_components(dict.fromkeys(weights, 1), weights) == whole
    assert weigh_stage(weights, weights) == whole


@given(st.lists(st.integers(1, 10**6) | st.decimals(1, 10**6, places=6), min_size=1, max_size=8))
def test_whole_weights_have_the_ratios_of_the_written_ones(written):
    weights = {f"c{number}": value for number, value in enumerate(written)}
    floats = {name: float(value) for name, value in weights.items()}
    whole = weigh_components(dict.fromkeys(weights, 1), floats)
    ratios = {Fraction(str(floats[name])) / weight for name, weight in whole.items()}
    assert len(ratios) == 1


def test_passes_weigh_by_samples():
    assert weigh_components(SAMPLES, {}, {"web": 1, "labels": 20, "synth": 0.5}) == {
        "web": 180,
        "labels": 200,
        "synth": 1,
    }


def test_a_weight_beside_passes_is_a_number_of_samples():
    """100 samples of synth while the others are passed as often as they say."""
    weights = weigh_components(SAMPLES, {"synth": 100}, {"web": 1, "labels": 2})
    assert weights == {"web": 9, "labels": 1, "synth": 1}


@pytest.mark.parametrize("temperature", [0, 0.3, 0.5, 1])
def test_a_temperature_is_a_power_of_samples(temperature):
    whole = weigh_components(SAMPLES, {}, temperature=temperature)
    powers = [samples**temperature for samples in SAMPLES.values()]
    for weight, power in zip(whole.values(), powers, strict=True):
        assert abs(weight / sum(whole.values()) - power / sum(powers)) < 2e-6


def test_a_temperature_gives_the_smallest_a_part():
    whole = weigh_components({"large": 10**12, "small": 1}, {}, temperature=1)
    assert whole == {"large": 10**6, "small": 1}


def test_a_stage_gives_nothing_to_what_it_does_not_name():
    assert weigh_stage(SAMPLES, {"labels": 1.5, "web": 3}) == {"web": 2, "labels": 1, "synth": 0}


@pytest.mark.parametrize(
    ("weights", "passes", "temperature", "message"),
    [
        (
            {"web": 0, "labels": 0, "synth": 0},
            {},
            None,
            "web, labels, synth are all 0; give at lea",
        ),
        ({"web": -1, "labels": 1, "synth": 1}, {}, None, "weight of 'web' must be .*, got -1;"),
        ({"web": float("nan"), "labels": 1, "synth": 1}, {}, None, "of 'web' must be .*, got nan;"),
        ({"web": float("inf"), "labels": 1, "synth": 1}, {}, None, "of 'web' must be .*, got inf;"),
        ({"web": True, "labels": 1, "synth": 1}, {}, None, "of 'web' must be .*, got True;"),
        ({"labels": 1, "synth": 1}, {"web": -2}, None, "passes of 'web' must be .*, got -2;"),
        ({"web": 1, "labels": 2}, {"labels": 3}, None, "'labels' .*, got weight=2 and passes=3;"),
        ({"web": 1, "labels": 2}, {}, None, "component 'synth' needs either .*, got neither;"),
        ({"web": 1, "wep": 2}, {}, None, "got 'wep'; its components are web, labels, synth"),
        ({"web": 1}, {}, 0.5, "temperature=0.5 takes the place of .*, got some for web; remove"),
        ({}, {"labels": 1}, 0.5, "temperature=0.5 takes the place of .*, got some for labels; rem"),
        ({}, {}, 5, "temperature must be from 0 to 1, got 5; 1 weighs by samples"),
        ({}, {}, -0.1, "temperature must be from 0 to 1, got -0.1;"),
        ({}, {}, float("nan"), "temperature must be from 0 to 1, got nan;"),
    ],
)
def test_weights_that_give_no_mixture_are_refused(weights, passes, temperature, message):
    with pytest.raises(ConfigError, match=message):
        weigh_components(SAMPLES, weights, passes, temperature)


@pytest.mark.parametrize("by", [{"passes": {"web": 1}}, {"temperature": 0}, {"temperature": 0.5}])
def test_a_component_without_samples_cannot_be_weighed_by_them(by):
    with pytest.raises(PlanError, match="component 'web' has 0 samples; check its shards"):
        weigh_components({"web": 0}, {}, **by)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "needs at least one component, got none; name one below mix"),
        (["web-2"], "must be an identifier other than .*, got 'web-2'; use letters"),
        (["2web"], "must be an identifier other than .*, got '2web';"),
        (["shortest"], "other than shortest and longest, got 'shortest';"),
        (["web", "Web"], "upper and lower case, got 'web' and 'Web'; rename"),
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
        (0, (1, 1), "round must be from 1 to 1048576 units, got 0;"),
        (2**20 + 1, (1, 1), "round must be from 1 to 1048576 units, got 1048577;"),
        (
            4,
            (1, 1, 1),
            "round=4 is too short for the weights a=1, b=1, c=1; .* is 3, in which .* 6",
        ),
        (
            7,
            (30, 29, 28, 27),
            "round=7 is too short .*; the least round is 12; set round to it, or",
        ),
    ],
)
def test_a_round_that_is_too_short_names_the_least(units, weights, message):
    with pytest.raises(ConfigError, match=message):
        check_round(units, dict(zip("abcd", weights, strict=False)))


@pytest.mark.parametrize(
    ("units", "weights"), [(3, (1, 1, 1)), (6, (1, 1, 1)), (7, (1, 1, 1)), (12, (30, 29, 28, 27))]
)
def test_a_round_that_is_long_enough_is_taken(units, weights):
    check_round(units, dict(zip("abcd", weights, strict=False)))


WEIGHTS = {"web": 9, "labels": 1, "synth": 2}  # passes of 100, 50 and 5 x 12 samples


@pytest.mark.parametrize(
    ("asked", "samples"),
    [
        ({"dataset_size": 1_000}, 996),
        ({"dataset_size": 12}, 12),
        ({"epoch_of": "web"}, 1_200),
        ({"epoch_of": "labels"}, 600),
        ({"epoch_of": "longest"}, 1_200),
        ({"epoch_of": "shortest"}, 60),
    ],
)
def test_an_epoch_is_whole_rounds(asked, samples):
    assert epoch_of_mixture(SAMPLES, WEIGHTS, 12, **asked) == samples


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "either dataset_size or epoch_of, got dataset_size=None and epoch_of=None; give"),
        ({"dataset_size": 9, "epoch_of": "web"}, "got dataset_size=9 and epoch_of='web'; give"),
        ({"dataset_size": 11}, "at least one round of 12 samples, got dataset_size=11; make"),
        ({"dataset_size": 0}, "at least one round of 12 samples, got dataset_size=0; make"),
        ({"epoch_of": "wep"}, "one of web, labels, synth, shortest, longest, .*, got 'wep'; name"),
    ],
)
def test_epochs_that_are_none_are_refused(asked, message):
    with pytest.raises(ConfigError, match=message):
        epoch_of_mixture(SAMPLES, WEIGHTS, 12, **asked)


def test_an_epoch_of_a_component_shorter_than_a_round_is_refused():
    with pytest.raises(
        ConfigError, match="got epoch_of='synth', whose pass takes 20; make the epoch"
    ):
        epoch_of_mixture(SAMPLES, {"web": 1, "labels": 0, "synth": 1}, 64, epoch_of="synth")


def test_no_epoch_is_one_of_a_component_without_weight():
    with pytest.raises(
        ConfigError, match=r"one of web, synth, shortest, longest, which .* got 'labels'"
    ):
        epoch_of_mixture(SAMPLES, {"web": 1, "labels": 0, "synth": 1}, 2, epoch_of="labels")
