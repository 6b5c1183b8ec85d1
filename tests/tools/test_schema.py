"""`lightning-shards schema`: editors complete what there is, and mark what is misspelt."""

import inspect
import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.tools import schema

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
SETTINGS = [name for name in inspect.signature(ShardDataModule).parameters if name != "self"]


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    """Of what the command prints."""
    with redirect_stdout(io.StringIO()) as printed:
        schema.main([])
    document = json.loads(printed.getvalue())
    Draft202012Validator.check_schema(document)
    return Draft202012Validator(document)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_valid(path: Path, validator: Draft202012Validator) -> None:
    validator.validate(yaml.safe_load(path.read_text()))


def test_every_setting_has_its_sentence(validator: Draft202012Validator) -> None:
    data = validator.schema["properties"]["data"]
    split = validator.schema["$defs"]["SplitConfig"]
    of_fields = [[field.name for field in fields(kind)] for kind in (SplitConfig, LoaderConfig)]
    parts = [data, split, data["properties"]["loader"]]
    for part, names in zip(parts, [SETTINGS, *of_fields], strict=True):
        described = part["properties"]
        assert described.keys() - {"$schema"} == set(names)
        assert all(described[name]["description"] for name in names)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda data: data.update(batchsize=3), ["data"]),
        (lambda data: data["train"].pop("urls"), ["data", "train"]),
        (lambda data: data.update(loader={"pool": "spark"}), ["data", "loader", "pool"]),
        (lambda data: data.pop("fields"), ["data"]),
    ],
)
def test_what_does_not_fit_is_marked(
    change: Callable[[Any], object], where: list[str], validator: Draft202012Validator
) -> None:
    config = yaml.safe_load(CONFIGS[0].read_text())
    change(config["data"])
    [error] = validator.iter_errors(config)
    assert list(error.absolute_path) == where
