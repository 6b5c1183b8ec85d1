"""What is wrong with a mixture is told when its source is made, with value and remedy."""

from typing import Any

import pytest

from lightning_shards import DecodeResize, PlanError
from lightning_shards.errors import ConfigError, ShardNotFoundError, StateError
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.stream import StreamSource
from tests.mixed_shards import mix_of, module_of, pack_component

NAMES = ("web", "labels", "more")


def source_of(tmp_path, split=None, components=None, **settings: Any):
    mix = mix_of(tmp_path / "shards", NAMES, **(components or {}))
    return module_of(tmp_path, mix, split, **settings).source("train")


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            {"dataset_size": 7},
            r"at least one round of 8 samples, got dataset_size=7; make the epoch",
        ),
        ({"unit": 12}, r"unit=12 must be a multiple of batch_size=8, .*; set unit=16, leave it"),
        (
            {"unit": 8, "remainder": "balanced", "dataset_size": 64},
            r"remainder='balanced' makes smaller batches at the end of an epoch, which would cut",
        ),
    ],
)
def test_a_mixture_that_does_not_go_with_its_shards_is_refused(tmp_path, split, message):
    with pytest.raises(ConfigError, match=message):
        source_of(tmp_path, split)


def test_a_component_without_samples_is_refused_by_its_name(tmp_path):
    mix = mix_of(tmp_path / "shards", ("web",))
    mix["empty"] = {"urls": pack_component(tmp_path / "shards", "empty", [0, 0]), "weight": 0}
    with pytest.raises(
        PlanError, match=r"^component 'empty' has 0 samples; check .*remove it from"
    ):
        module_of(tmp_path, mix).source("train")


def iterated(samples):
    return samples


def test_one_reader_reads_all_components(tmp_path):
    assert isinstance(source_of(tmp_path, {"sampling": "resampled"}), IndexedSource)
    stages = {"web": {"stages": [iterated]}}
    streamed = source_of(tmp_path, {"sampling": "resampled"}, stages)
    assert isinstance(streamed, StreamSource)
    assert streamed.describe().mixture.slots == source_of(tmp_path).order.slots


def resumed(tmp_path, state, split=None, components=None, **settings: Any):
    mix = mix_of(tmp_path / "shards", NAMES, **(components or {}))
    loader = module_of(tmp_path, mix, split, **settings).loader("train")
    loader.load_state_dict(state)
    return [batch["__key__"] for batch in loader]


@pytest.fixture
def state(tmp_path):
    """After an epoch and two of the four steps of the next one: 48 samples of the run."""
    loader = module_of(tmp_path, mix_of(tmp_path / "shards", NAMES)).loader("train")
    for _ in loader:
        pass
    batches = iter(loader)
    next(batches)
    next(batches)
    return loader.state_dict()


LATER = [{"samples": 48, "weights": {"more": 1}}]


def test_stages_behind_the_cursor_may_change_and_components_come_and_go(tmp_path, state):
    rest = resumed(tmp_path, state)
    assert len(rest) == 2
    changed = resumed(tmp_path, state, {"schedule": LATER})
    assert {key[:-3] for keys in changed for key in keys} == {"more"}
    mix = mix_of(tmp_path / "shards", NAMES)
    mix["new"] = {"urls": pack_component(tmp_path / "shards", "new", [9]), "weight": 0}
    later = {"schedule": [{"samples": 48, "weights": {"new": 1, "web": 1}}]}
    loader = module_of(tmp_path, mix, later).loader("train")
    loader.load_state_dict(state)
    assert {key[:-3] for batch in loader for key in batch["__key__"]} == {"new", "web"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 8}, r"made with seed=7, this run has 8; set it back"),
        (
            {"split": {"schedule": [{"samples": 40, "weights": {"web": 1}}]}},
            r"has the weights web=1 from sample 40 .*; 48 samples .* may change from sample 48 of",
        ),
        (
            {"components": {"web": {"keep": {"hash_of": "key", "of": 2, "parts": [0]}}}},
            r"the component 'web' of .*, this run has .*kept=\w+; set its `keep` and `exclude`",
        ),
    ],
)
def test_a_mix_that_was_another_one_before_the_cursor_is_refused(tmp_path, state, change, message):
    with pytest.raises(StateError, match=message):
        resumed(tmp_path, state, **change)


def test_only_what_was_trained_must_be_decoded_by_the_same_backend(tmp_path):
    """Another backend gives other pixels; a component without weight before has given none."""

    def loader_with(transforms, **weights):
        own = {name: {"transforms": {"image": each}} for name, each in transforms.items()}
        own["web"] |= weights
        mix = mix_of(tmp_path / "shards", ("web", "more"), **own)
        return module_of(tmp_path, mix, decode={}).loader("train")

    pillow, turbo = (DecodeResize(size=4, backend=each) for each in ("pillow", "turbo"))
    loader = loader_with({"web": pillow, "more": pillow}, weight=0)
    state = loader.state_dict() | {"samples": 8}
    loader_with({"web": turbo, "more": pillow}, weight=0).load_state_dict(state)
    message = "component 'more' of no more, this run has image_backend=turbo; set"
    with pytest.raises(StateError, match=message):
        loader_with({"web": pillow, "more": turbo}, weight=0).load_state_dict(state)


def test_a_resume_that_would_cut_a_unit_is_refused_by_name(tmp_path):
    split = {"unit": 8, "dataset_size": 64}
    mix = mix_of(tmp_path / "shards", NAMES)
    loader = module_of(tmp_path, mix, split, batch_size=4).loader("train")
    next(batches := iter(loader))
    state = loader.state_dict()
    batches.close()
    message = "after 4 samples of its epoch, which are no multiple of batch_size=8, .*such as 4$"
    with pytest.raises(StateError, match=message):
        resumed(tmp_path, state, split, batch_size=8)
    rest = resumed(tmp_path, state, split, batch_size=2)
    assert len(rest) == 30
    assert all(len({key[:-3] for key in keys}) == 1 for keys in rest)


def test_components_that_number_classes_differently_are_refused(tmp_path):
    own = {"weight": 1, "fields": {"label": "cls"}, "decode": {"label": "class"}}
    mix = {
        name: {"urls": pack_component(tmp_path / name, name, [8]), **own}
        for name in ("web", "more")
    }
    for names in (["dog", "cat"], ["cat", "dog", "cow"]):
        mix["web"]["classes"], mix["more"]["classes"] = {"label": ["cat", "dog"]}, {"label": names}
        data = module_of(tmp_path, mix, {"round": 8}, fields={"label": "cls"}, decode=None)
        message = r"'label' of component 'web' and .* of component 'more' have dif.*classes: {label"
        with pytest.raises(ConfigError, match=message):
            data.source("train")
    for component in mix.values():
        component.pop("classes")
    classes = {"label": ["cat", "dog"]}
    split = {"round": 8, "classes": classes, "decode": {"label": "class"}}
    source = module_of(tmp_path, mix, split, fields={"label": "cls"}, decode=None).source("train")
    assert source.identity()


def test_missing_shards_are_named_with_their_component(tmp_path):
    mix = mix_of(tmp_path / "shards", ("web", "more"), more={"urls": "gone-*.tar"})
    with pytest.raises(ShardNotFoundError, match=r"^train\.mix\.more: no file matches gone-"):
        module_of(tmp_path, mix).source("train")


def test_a_list_about_one_component_belongs_into_it_and_not_into_the_split(tmp_path):
    (tmp_path / "out.txt").write_text("web000\n")
    listed = {"exclude": str(tmp_path / "out.txt")}
    with pytest.raises(ConfigError, match=r"^train\.mix\.labels: exclude: .* component"):
        source_of(tmp_path, listed)
    assert source_of(tmp_path, None, {"web": listed}).index.components[0].kept_samples == 16
