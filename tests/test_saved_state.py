"""The state of a data module: plain values, which another run of the same order takes back."""

import pytest

from lightning_shards import SplitConfig
from lightning_shards.errors import StateError


@pytest.fixture
def urls(pack_shards):
    return pack_shards([4, 3, 4])


def test_the_state_names_what_makes_the_order(make_module, urls):
    state = make_module(SplitConfig(urls), seed=6).loader("train").state_dict()
    assert {name: state[name] for name in ("seed", "sampling")} == {
        "seed": 6,
        "sampling": "resampled",
    }
    assert {"order_version", "shards", "epoch", "samples", "version"} <= state.keys()


def test_the_state_goes_with_the_data_to_another_folder(make_module, urls, tmp_path):
    state = make_module(SplitConfig(urls)).loader("train").state_dict()
    moved = (tmp_path / "shards").rename(tmp_path / "moved")
    loader = make_module(SplitConfig(f"{moved}/*.tar")).loader("train")
    loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("field", "changed", "told"),
    [
        ("seed", {"seed": 1}, "with seed=0, this run has 1"),
        ("sampling", {"sampling": "shuffled"}, "with sampling='resampled', this run has 'shuf"),
        ("shards", {"num_shards": 2}, "of other shards: its epoch has 11 samples, .* hold 7; "),
    ],
)
def test_a_state_of_another_order_is_refused(field, changed, told, make_module, urls):
    def loader(seed=0, sampling="resampled", num_shards=3):
        split = SplitConfig(urls[:num_shards], sampling=sampling)
        return make_module(split, seed=seed).loader("train")

    state = loader().state_dict()
    with pytest.raises(StateError, match=told):
        loader(**changed).load_state_dict(state)


def test_a_module_keeps_a_state_that_it_has_not_used(make_module, urls):
    state = {"epoch": 3, "samples": 0}
    module = make_module(SplitConfig(urls))
    module.load_state_dict(state)
    assert module.state_dict() == state
