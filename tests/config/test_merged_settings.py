"""What a component of a mixture keeps of the mappings of its split and of the module."""

from typing import Any

import pytest

from lightning_shards.config.module import DataConfig
from lightning_shards.errors import ConfigError


def merged(name: str, own: dict[str, Any], **settings: Any) -> Any:
    """What a component with these settings has under a name."""
    mix = {"web": {"urls": "a.tar", "weight": 1, **own}}
    split = {"mix": mix, "dataset_size": 8, **settings.pop("split", {})}
    data = DataConfig(split, **{"fields": {"image": "png"}} | settings)
    (part,) = data.split("train").component_splits().values()
    return getattr(part, name)


@pytest.mark.parametrize("suffixes", ["png", "PNG", "png ", "jpg; png", "png?", "png.gz", "a.png"])
@pytest.mark.parametrize("key", [".png", ".PNG"])
def test_a_decoder_of_a_suffix_is_kept_where_a_field_has_it(suffixes, key):
    """The suffixes of a field are read as decoding reads them, or its data would change unseen."""
    own = {"fields": {"image": suffixes}}
    assert merged("decode", own, decode={key: "gray"}) == {".png": "gray"}


def test_a_decoder_of_a_suffix_is_kept_where_a_joined_tar_has_it():
    join = {"depth": {"table": "depth.tar", "column": "npy"}}
    own = {"fields": {"image": "png"}, "join": join}
    assert merged("decode", own, decode={".npy": "raw"}) == {".npy": "raw"}


@pytest.mark.parametrize(("value", "kept"), [("rgb", {".png": "rgb"}), (None, {})])
def test_a_suffix_of_a_component_stands_for_that_of_its_split_in_any_case(value, kept):
    assert merged("decode", {"decode": {".png": value}}, decode={".PNG": "gray"}) == kept


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("transforms", "imaeg", abs),
        ("decode", "imaeg", "gray"),
        ("decode", ".pgn", "gray"),
        ("defaults", "imaeg", 1),
        ("classes", "imaeg", ["a"]),
    ],
)
@pytest.mark.parametrize("place", ["module", "split"])
def test_a_key_that_no_component_takes_is_refused(place, setting, key, value):
    given: dict[str, Any] = {setting: {key: value}}
    settings = given if place == "module" else {"split": given}
    message = rf"^{setting} names \['{key}'\], and no component .* the fields are \['image'\]: "
    with pytest.raises(ConfigError, match=message):
        merged(setting, {"fields": {"image": "png"}}, **settings)


def test_a_key_that_one_component_takes_is_none_of_the_others():
    fields = ({"image": "png"}, {"image": "jpg", "mask": "png"})
    mix = {
        name: {"urls": "a.tar", "weight": 1, "fields": own}
        for name, own in zip("ab", fields, strict=True)
    }
    data = DataConfig(
        {"mix": mix, "dataset_size": 8, "unit": 8},
        *(None, None, None),
        fields={"text": "txt"},
        decode={".jpg": "gray", "mask": "gray"},
        transforms={"mask": abs},
        batch_size=8,
    )
    first, second = data.split("train").component_splits().values()
    assert (first.decode, first.transforms) == ({}, {})
    assert (second.decode, second.transforms) == ({".jpg": "gray", "mask": "gray"}, {"mask": abs})


def test_a_key_that_the_only_component_of_it_takes_away_is_no_misspelt_one():
    own = {"fields": {"photo": "webp"}, "decode": {".WEBP": None, "photo": None}}
    assert merged("decode", own, decode={".webp": "gray", "photo": "gray"}) == {}


def test_a_key_of_a_field_that_only_other_splits_have_is_no_misspelt_one():
    fields, decode = {"image": "png", "label": "cls"}, {"image": "gray", ".png": "gray"}
    assert merged("decode", {"fields": {"label": "cls"}}, fields=fields, decode=decode) == {}


def test_a_transform_of_a_field_that_sample_transforms_make_is_kept():
    own = {"fields": {"image": "png"}, "sample_transforms": [dict]}
    assert merged("transforms", own, transforms={"made": abs}) == {"made": abs}
