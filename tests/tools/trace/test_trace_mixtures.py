"""`trace` says of each row of a mixture by its name which component it is from."""

import pytest

from lightning_shards import LoaderConfig, ShardDataModule
from lightning_shards.tools import trace
from tests.mixed_shards import mix_of
from tests.tools.trace.conftest import WORLD_SIZE, rows_in

NAMES = ("web", "labels", "more")


@pytest.fixture
def mixed(tmp_path):
    """The settings of a train split, whose components have the field `label` alone."""

    def make(sampling, reader):
        mix = mix_of(tmp_path / "shards", NAMES)
        for component in mix.values():
            component.pop("decode", None)
        mix["labels"] |= {"fields": {"label": "class.txt"}, "decode": {"label": "int"}}
        mix["more"] |= {"fields": {"label": "cls"}}
        return {
            "train": {
                "urls": None,
                "mix": mix,
                "round": 8,
                "dataset_size": 32,
                "sampling": sampling,
                "reader": reader,
            }
        }

    return make


def components_in(document):
    return [
        [[row["component"] for row in rank] for rank in step["ranks"]] for step in document["steps"]
    ]


@pytest.mark.parametrize(
    ("sampling", "reader"),
    [("shuffled", "indexed"), ("resampled", "indexed"), ("resampled", "stream")],
)
def test_each_row_comes_with_the_name_of_its_component(
    sampling, reader, mixed, settings, write_config, traced
):
    splits = mixed(sampling, reader)
    values = settings(splits)
    module = ShardDataModule(**values | {"loader": LoaderConfig(**values["loader"])})
    loaders = [module.loader("train", rank=rank, world_size=WORLD_SIZE) for rank in range(2)]
    steps = list(zip(*(list(loader) for loader in loaders), strict=True))
    document = traced(write_config(splits), steps=f"0:{len(steps)}")
    assert components_in(document) == [
        [[NAMES[number] for number in batch["__component__"]] for batch in ranks] for ranks in steps
    ]
    assert [[[row[0] for row in rank] for rank in step] for step in rows_in(document)] == [
        [batch["__key__"] for batch in ranks] for ranks in steps
    ]


def test_the_table_has_a_column_of_components(mixed, write_config, capsys):
    config = write_config(mixed("shuffled", "indexed"))
    trace.main(["--config", str(config), "--epoch=0", "--steps=0:4"])
    first, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert first == ["step", "rank", "row", "component", "shard", "sample", "key"]
    assert {line[3] for line in lines} == set(NAMES)
    assert [line[-1].rstrip("0123456789") for line in lines] == [line[3] for line in lines]
