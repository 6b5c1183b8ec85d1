"""The log says at the start of a fit what batches and epochs of a mixture hold."""

import pytest

from lightning_shards.build.loaders import describe
from lightning_shards.workers.pool import PoolDescription
from tests.mixed_shards import mix_of, module_of

NAMES = ("web", "labels", "more")


@pytest.fixture
def lines_of(tmp_path):
    """The lines about a mixture of 5 web, 2 labels and 1 more a round, in epochs of four rounds."""

    def lines(split=None, world_size=1, epoch=0, **components):
        mix = mix_of(tmp_path / "shards", NAMES, **components)
        source = module_of(tmp_path, mix, split).source("train")
        pool = PoolDescription("inline")
        return describe("train", source, world_size, pool, epoch=epoch).splitlines()

    return lines


def test_the_weights_and_the_passes_of_an_epoch_are_told(lines_of):
    first, *others = lines_of(world_size=2)
    assert first == (
        "train: 32 samples from 8 shards, mixture by the indexed reader, 2 steps of 2 x 8 samples "
        "(0 dropped, 0 repeated)"
    )
    assert others == [
        "  3 components in rounds of 8 samples, in epoch 0:",
        "  web: weight 5 of 8, 20 samples an epoch (1.176 passes)",
        "  labels: weight 2 of 8, 8 samples an epoch (1.333 passes)",
        "  more: weight 1 of 8, 4 samples an epoch (0.5714 passes)",
    ]


def test_an_epoch_has_the_weights_of_its_stage(lines_of):
    then = lines_of({"schedule": [{"epoch": 2, "weights": {"web": 1, "labels": 1}}]}, epoch=2)
    assert [": weight 1 of 2, 16 " in line for line in then[2:4]] == [True] * 2
    assert "more: weight 0 of 2, 0 samples" in then[4]
    assert len(then) == 5


def test_the_line_of_a_component_says_what_its_filter_leaves(tmp_path, lines_of):
    (tmp_path / "out.txt").write_text("web000\nweb001\n")
    lines = lines_of(web={"exclude": str(tmp_path / "out.txt")})
    told = {name: line for name in NAMES for line in lines if line.startswith(f"  {name}: ")}
    assert told["web"].endswith("; keep and exclude leave 15 of 17")
    assert "leave" not in told["labels"] + told["more"]
