"""Joined columns are fields: their values, gaps, decoders and transforms, made in both ways."""

import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from lightning_shards import SplitConfig
from lightning_shards.errors import ConfigError

COUNTS = [3, 0, 4, 2]
KEYS = list(range(sum(COUNTS)))
SHUFFLED = [4, 8, 1, 6, 0, 3, 7, 2, 5]

KINDS = {
    "text": (pa.large_string(), lambda n: f"é{n}" * n),
    "whole": (pa.int16(), lambda n: n - 4),
    "half": (pa.float16(), np.float16),
    "data": (pa.binary(), lambda n: bytes(range(n))),
    "embedding": (pa.list_(pa.float32(), 3), lambda n: [n, 0.5, -n]),
    "mask": (pa.large_list(pa.bool_()), lambda n: [n > 3, True]),
    "struct": (pa.struct({"a": pa.int64()}), lambda n: {"a": n}),
    "boxes": (pa.list_(pa.list_(pa.float64())), lambda n: [[n, 1.5]] * 2),
}
ARRAYS = {"embedding": np.float32, "mask": np.bool_}
NUMBERS = {"whole": torch.int64, "half": torch.float64}


@pytest.fixture
def write_table(tmp_path):
    """Writes a Parquet table of columns; keys are numbers of samples of `pack`."""

    def write(keys, columns, **options):
        path = tmp_path / "table.parquet"
        table = pa.table({"__key__": [f"{key:06d}" for key in keys], **columns})
        parquet.write_table(table, path, **options)
        return str(path)

    return write


def column(kind: str, keys: list[int]) -> Any:
    arrow_type, value = KINDS[kind]
    return pa.array([value(key) for key in keys], arrow_type)


def batches(make_module, urls, join, **settings):
    split = {
        name: settings.pop(name)
        for name in ("on_bad_sample", "max_bad", "sampling", "remainder", "exclude")
        if name in settings
    }
    split = {"sampling": "sequential", **split}
    module = make_module(SplitConfig(urls, join=join, **split), batch_size=9, **settings)
    return list(module.loader("train", rank=0, world_size=1))


@pytest.mark.parametrize("more", [{}, {"other": "txt;cls"}], ids=["by columns", "by samples"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_each_type_comes_with_the_samples_of_its_keys(
    kind, more, make_module, pack_shards, write_table
):
    """A field with two decodings has no columns, so that batches are made by samples."""
    path = write_table(SHUFFLED, {kind: column(kind, SHUFFLED)}, row_group_size=4)
    fields = {"label": "cls", **more}
    (batch,) = batches(make_module, pack_shards(COUNTS), {kind: path}, fields=fields)
    expected = [KINDS[kind][1](key) for key in KEYS]
    made = batch[kind]
    assert batch["label"].tolist() == KEYS
    if kind in ARRAYS:
        assert made.numpy().dtype == ARRAYS[kind]
        assert made.tolist() == np.array(expected, ARRAYS[kind]).tolist()
    elif kind in NUMBERS:
        assert (made.dtype, made.tolist()) == (NUMBERS[kind], expected)
    else:
        assert made == expected


@pytest.mark.parametrize("size", [3, -1], ids=["of one size", "of any size"])
def test_a_null_list_is_no_value(size, make_module, pack_shards, write_table):
    lists = [None if key in (0, 5) else [key, -key, 7] for key in KEYS]
    join = {"x": write_table(KEYS, {"x": pa.array(lists, pa.list_(pa.int32(), size))})}
    (batch,) = batches(make_module, pack_shards(COUNTS), join)
    assert [x if x is None else x.tolist() for x in batch["x"]] == lists


def test_a_dictionary_column_and_whole_number_keys_are_read(make_module, write_tar, tmp_path):
    path = write_tar(tmp_path / "0.tar", [(f"{n}.cls", b"1") for n in range(4)])
    texts = pa.array(["b", "a", "b", None]).dictionary_encode()
    table = pa.table({"image": pa.array([3, 2, 1, 0], pa.int32()), "caption": texts})
    parquet.write_table(table, tmp_path / "t.parquet")
    join = {"text": {"table": str(tmp_path / "t.parquet"), "key": "image"}}
    (batch,) = batches(make_module, [str(path)], join, remainder="pad")
    assert batch["text"][:4] == [None, "b", "a", "b"]


def test_other_tars_are_decoded_by_their_suffix(make_module, pack_shards, write_tar, tmp_path):
    for part, keys in enumerate((SHUFFLED[:4], SHUFFLED[4:])):
        names = [(f"{key:06d}", "txt" if key == 7 else "json", key) for key in keys]
        members = [(f"{name}.{suffix}", f"[{key}]".encode()) for name, suffix, key in names]
        write_tar(tmp_path / f"more-{part}.tar", members)
    join = {"numbers": {"table": f"{tmp_path}/more-{{0..1}}.tar", "column": "json"}}
    (batch,) = batches(make_module, pack_shards(COUNTS), join)
    assert batch["numbers"] == [[key] if key != 7 else None for key in KEYS]


def test_a_default_stands_for_missing_values_before_transforms(
    make_module, pack_shards, write_table, caplog
):
    join = {
        "score": write_table(KEYS[:-1], {"score": [*map(float, KEYS[:-2]), None]}),
    }
    settings = {"defaults": {"score": -1.0}, "transforms": {"score": lambda score: score * 2}}
    (batch,) = batches(make_module, pack_shards(COUNTS), join, **settings)
    assert batch["score"].tolist() == [*(2.0 * key for key in KEYS[:-2]), -2.0, -2.0]
    assert "optional" not in caplog.text  # that shards have no such member is as it should be


def test_decoders_classes_and_sample_transforms_take_joined_fields(
    make_module, pack_shards, write_table
):
    table = write_table(
        KEYS,
        {
            "name": [("cat", "dog")[key % 2] for key in KEYS],
            "raw": [np.float32(key).tobytes() for key in KEYS],
            "boxes": pa.array([[[key, 1]] for key in KEYS]),
        },
    )
    join = {name: {"table": table, "column": name} for name in ("name", "raw", "boxes")}

    def both(sample):
        return sample | {"both": sample["name"] + 10 * sample["label"]}

    (batch,) = batches(
        make_module,
        pack_shards(COUNTS),
        join,
        decode={"name": "class", "raw": "float32", "boxes": "json"},
        classes={"name": ["cat", "dog"]},
        sample_transforms=[both],
    )
    assert batch["both"].tolist() == [key % 2 + 10 * key for key in KEYS]
    assert batch["raw"].flatten().tolist() == KEYS
    assert batch["boxes"][0] == [[0, 1]]


def test_a_bad_joined_value_is_a_bad_sample(make_module, pack_shards, write_table):
    texts = ["1", "2", "{", "4", "5", "6", "7", "8", "9"]
    join = {"value": write_table(KEYS, {"value": texts})}
    decode = {"value": "json"}
    with pytest.raises(ValueError, match=r"'000002' of .*the value from its join.*as 'json'"):
        batches(make_module, pack_shards(COUNTS), join, decode=decode)
    (batch,) = batches(
        make_module, pack_shards(COUNTS), join, decode=decode, on_bad_sample="substitute", max_bad=1
    )
    assert batch["value"].tolist() == [1, 2, 4, 4, 5, 6, 7, 8, 9]
    assert batch["__weight__"].tolist() == [1, 1, 0, 1, 1, 1, 1, 1, 1]


def test_samples_without_a_value_are_counted_in_one_line(
    make_module, pack_shards, write_table, caplog
):
    join = {"n": write_table([*KEYS[2:], 90, 91, 92], {"n": [None, *KEYS[3:], 0, 0, 0]})}
    module = make_module(SplitConfig(pack_shards(COUNTS), sampling="sequential", join=join))
    with caplog.at_level(logging.WARNING):
        module.source("train").prepare()
    (message,) = [text for text in caplog.messages if text.startswith("join")]
    assert "3 of 9 samples have no value in" in message
    assert "first '000000' (#shard-000000.tar:0): they get None" in message
    caplog.clear()
    list(module.loader("train", rank=0, world_size=1))
    assert not [text for text in caplog.messages if text.startswith("join")]


def test_only_samples_that_the_filter_keeps_must_have_values(
    make_module, pack_shards, write_table, tmp_path
):
    urls, table = pack_shards(COUNTS), write_table(KEYS[:-2], {"n": KEYS[:-2]})
    join, keys = {"n": {"table": table, "missing": "raise"}}, tmp_path / "keys.txt"
    keys.write_text("000007\n")
    with pytest.raises(
        ConfigError, match=r"1 of 8 .* no value in .*'000008' \(#shard-\d+\.tar:\d\)"
    ):
        batches(make_module, urls, join, exclude=keys, remainder="balanced")
    keys.write_text("000007\n000008\n")
    (batch,) = batches(make_module, urls, join, exclude=keys, remainder="balanced")
    assert batch["n"].tolist() == KEYS[:-2]
