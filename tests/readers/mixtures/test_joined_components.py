"""Joins of the components of a mix: each component has tables of its own, or those of its split."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from lightning_shards import LoaderConfig, SplitConfig
from lightning_shards.errors import ConfigError
from tests.mixed_shards import COUNTS, mix_of, module_of

WEB, LABELS, MORE = ("web", "labels", "more")


@pytest.fixture
def write(tmp_path):
    """Writes the table of a component: the value of sample number n is "NAME n" in upper case."""

    def write(name, numbers=None, column="text", values=None):
        numbers = range(sum(COUNTS[name])) if numbers is None else numbers
        columns = {
            "__key__": [f"{name}{number:03d}" for number in numbers],
            column: values or [f"{name} {number}".upper() for number in numbers],
        }
        path = tmp_path / f"{name}-{column}.parquet"
        parquet.write_table(pa.table(columns), path)
        return str(path)

    return write


def batches(module, epochs=2):
    loader = module.loader("train", rank=0, world_size=2)
    return [batch for _ in range(epochs) for batch in loader]


def made(tmp_path, mix, split=None, num_workers=0, **settings):
    return module_of(
        tmp_path,
        mix,
        {"dataset_size": 64, **(split or {})},
        batch_size=5,
        num_workers=num_workers,
        loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
        **settings,
    )


def expected_of(key):
    return f"{key[:-3]} {int(key[-3:])}".upper()


@pytest.mark.parametrize("names", [(WEB, MORE), (WEB, LABELS, MORE)], ids=["alike", "different"])
@pytest.mark.parametrize("sample_transforms", [[], [dict]], ids=["columns", "samples"])
@pytest.mark.parametrize("unit", [1, 5])
def test_each_component_is_joined_with_its_own_table(
    tmp_path, write, names, sample_transforms, unit
):
    joins = {name: {"join": {"text": write(name)}} for name in names}
    mix = mix_of(tmp_path / "shards", names, **joins)
    module = made(tmp_path, mix, {"unit": unit, "sample_transforms": sample_transforms})
    seen = {}
    for each in batches(module, epochs=6):
        seen.update(zip(each["__key__"], each["text"], strict=True))
    assert seen == {key: expected_of(key) for key in seen}
    assert {key[:-3] for key in seen} == set(names)


@pytest.mark.parametrize("sample_transforms", [[], [dict]], ids=["columns", "samples"])
def test_components_of_the_same_shards_have_each_its_own_table(tmp_path, write, sample_transforms):
    """One set of images with two sets of captions."""
    values = [f"other {number}" for number in range(sum(COUNTS[WEB]))]
    other = Path(write(WEB, values=values)).rename(tmp_path / "other.parquet")
    (part,) = mix_of(tmp_path / "shards", (WEB,)).values()
    mix = {
        "first": part | {"join": {"text": write(WEB)}},
        "second": part | {"join": {"text": str(other)}},
    }
    module = made(tmp_path, mix, {"sample_transforms": sample_transforms})
    kinds = set()
    for each in batches(module, epochs=4):
        for key, text in zip(each["__key__"], each["text"], strict=True):
            kinds.add(text.partition(" ")[0])
            assert text.lower().partition(" ")[2] == str(int(key[-3:]))
    assert kinds == {"WEB", "other"}


def test_missing_rows_are_those_of_one_component(tmp_path, write):
    table = write(MORE, numbers=[0, 2, 3, 4, 5, 6])
    joins = {"web": {"join": {"text": write(WEB)}}}
    joins["more"] = {"join": {"text": {"table": table, "missing": "raise"}}}
    module = made(tmp_path, mix_of(tmp_path / "shards", (WEB, MORE), **joins))
    with pytest.raises(ConfigError, match=r"'text' of component 'more': 1 of 7 .*'more001'"):
        module.source("train").prepare()


BAD = {
    "settings": ({"join": {"t": "t.csv"}}, "component 'web': table of join 't' is"),
    "no mapping": ({"join": ["t"]}, r"mix\.web\.join: Expected a <class 'dict'>"),
    "stages": ({"join": {"t": "t.parquet"}, "stages": [iter]}, "does not go with stages"),
}


@pytest.mark.parametrize(("own", "message"), BAD.values(), ids=BAD)
def test_bad_joins_of_components_are_refused_before_anything_is_read(own, message):
    with pytest.raises(ConfigError, match=message):
        SplitConfig(mix={"web": {"urls": "a.tar", "weight": 1, **own}}, dataset_size=64)
