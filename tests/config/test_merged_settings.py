"""What a component of a mixture keeps of the mappings of its split and of the module."""

from typing import Any

import pytest

from lightning_shards.config.module import DataConfig


def merged(name: str, own: dict[str, Any], **settings: Any) -> Any:
    """What a component with these settings has under a name."""
    mix = {"web": {"urls": "a.tar", "weight": 1, **own}}
    split = {"mix": mix, "dataset_size": 8, **settings.pop("split", {})}
    data = DataConfig(split, **{"fields": {"image": "png"}} | settings)
    (part,) = data.split("train").component_splits().values()
    return getattr(part, name)


@pytest.mark.parametrize("suffixes", ["png", "PNG", "png ", "jpg; png", "png?", "png.gz", "a.png"])
@pytest.mark.parametrize("key", [".png", ".PNG"])
def test_a_decoder_of_a_suffix_is_kept_where_a_field_has_it(suffixes: str, key: str) -> None:
    """The suffixes of a field are read as decoding reads them, or its data would change unseen."""
    own = {"fields": {"image": suffixes}}
    assert merged("decode", own, decode={key: "gray"}) == {".png": "gray"}


def test_a_decoder_of_a_suffix_is_kept_where_a_joined_tar_has_it() -> None:
    join = {"depth": {"table": "depth.tar", "column": "npy"}}
    own = {"fields": {"image": "png"}, "join": join}
    assert merged("decode", own, decode={".npy": "raw"}) == {".npy": "raw"}


@pytest.mark.parametrize(("value", "kept"), [("rgb", {".png": "rgb"}), (None, {})])
def test_a_suffix_of_a_component_stands_for_that_of_its_split_in_any_case(
    value: str | None, kept: dict[str, str]
) -> None:
    assert merged("decode", {"decode": {".png": value}}, decode={".PNG": "gray"}) == kept
