"""The strands of a configuration: in its order, its batches and its checkpoints."""

import pytest

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig, StateError
from lightning_shards.errors import ConfigError
from lightning_shards.plan.kept_order import KeptOrder
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.strands import StrandOrder
from tests.mixed_shards import mix_of, module_of

COUNTS = [9, 14, 10]
STRANDS = {"shuffle_strands": 3, "shuffle_width": 4}


@pytest.fixture
def make(pack_shards, tmp_path):
    urls = pack_shards(COUNTS)

    def module(**split):
        settings = {"sampling": "shuffled", "shuffle_run": 2, "shuffle_block": 12}
        return ShardDataModule(
            SplitConfig(urls, **settings | split),
            fields={"label": "cls"},
            batch_size=2,
            num_workers=0,
            loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
        )

    return module


def test_samples_that_are_left_out_are_in_no_strand(make):
    half = {"exclude": {"hash_of": "key", "of": 2, "parts": [0]}}
    order = make(**STRANDS, **half).source("train").order
    assert (type(order), type(order.inner)) == (KeptOrder, StrandOrder)
    served = set(map(tuple, order.at(0, 0, order.samples).tolist()))
    assert len(served) == order.samples < sum(COUNTS)


@pytest.mark.parametrize(
    ("resumed", "message"),
    [
        ({}, "made with shuffle_strands=3, this run has no shuffle_strands;"),
        (STRANDS | {"shuffle_width": 2}, "made with shuffle_width=4, this run has 2;"),
    ],
)
def test_a_checkpoint_of_other_strands_is_refused(make, resumed, message):
    state = make(**STRANDS).loader("train").state_dict()
    with pytest.raises(StateError, match=message):
        make(**resumed).loader("train").load_state_dict(state)


def test_components_of_a_mix_have_strands_of_their_own(tmp_path):
    mix = mix_of(tmp_path / "shards", ("web", "labels"), web=STRANDS)
    order = module_of(tmp_path, mix).source("train").order
    assert [type(part.order) for part in order.mix] == [StrandOrder, SampleOrder]
    mix["labels"] |= {"shuffle_strands": 4, "shuffle_block": 80, "sampling": "resampled"}
    with pytest.raises(ConfigError, match="'labels': shuffle_strands=4 does not go with sampling"):
        module_of(tmp_path, mix)
    mix["labels"] |= {"shuffle_strands": 40, "sampling": "shuffled"}
    with pytest.raises(ConfigError, match=r"train\.mix\.labels: shuffle_strands=40 must be at mo"):
        module_of(tmp_path, mix).source("train")
