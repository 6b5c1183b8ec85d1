"""The state of a data module: plain values, which another run of the same order takes back."""

import pytest

from lightning_shards import SplitConfig


@pytest.fixture
def urls(pack_shards):
    return pack_shards([4, 3, 4])


def test_the_state_goes_with_the_data_to_another_folder(make_module, urls, tmp_path):
    state = make_module(SplitConfig(urls)).loader("train").state_dict()
    moved = (tmp_path / "shards").rename(tmp_path / "moved")
    loader = make_module(SplitConfig(f"{moved}/*.tar")).loader("train")
    loader.load_state_dict(state)


def test_a_module_keeps_a_state_that_it_has_not_used(make_module, urls):
    state = {"epoch": 3, "samples": 0}
    module = make_module(SplitConfig(urls))
    module.load_state_dict(state)
    assert module.state_dict() == state
