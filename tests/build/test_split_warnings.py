"""What a run warns of before it begins: shared shards, and classes that have other numbers."""

import json
import logging

import pytest

from lightning_shards import ShardWriter, SplitConfig


@pytest.fixture
def warnings_of(make_module, caplog):
    """What the log warns of when train and val are found, one after the other."""

    def found(train, val, **settings):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "lightning_shards.build.found_shards"):
            module = make_module(train, val=val, **settings)
            for name in ("train", "val", "val", "train"):
                module.source(name)
        return [record.getMessage() for record in caplog.records]

    return found


def test_shards_of_train_and_an_evaluation_are_told_once(pack_shards, warnings_of):
    urls = pack_shards([2, 2, 2])
    [message] = warnings_of(SplitConfig(urls[:2]), SplitConfig(urls[1:]))
    assert message.startswith(f"val and train read the same 1 shard, first {urls[1]}, so")
    assert "keep or exclude" in message
    assert warnings_of(SplitConfig(urls[:1]), SplitConfig(urls[2:])) == []


@pytest.mark.parametrize("kept", [0, 1])
def test_where_one_of_them_leaves_samples_out_nothing_is_said(pack_shards, warnings_of, kept):
    urls, filters = pack_shards([6]), [{}, {}]
    filters[kept] = {"keep": {"hash_of": "key", "of": 2, "parts": [0]}}
    assert warnings_of(*(SplitConfig(urls, **each) for each in filters)) == []


@pytest.fixture
def split(tmp_path):
    """The settings of a split whose folder has these classes."""

    def written(folder, classes):
        with ShardWriter(tmp_path / folder, cache_dir=tmp_path / "cache") as writer:
            for number in range(4):
                writer.write({"__key__": f"{folder}/{number}", "cls": str(number % 2)})
        if classes is not None:
            text = classes if isinstance(classes, str) else json.dumps(classes)
            (tmp_path / folder / "classes.json").write_text(text)
        return SplitConfig(str(tmp_path / folder / "*.tar"))

    return written


ALL, FEWER = {"a": 0, "b": 1, "c": 2}, {"a": 0, "c": 1}


@pytest.mark.parametrize("decode", [{}, {"decode": {"label": "class"}}])
def test_a_class_of_two_numbers_is_told_once(split, warnings_of, tmp_path, decode):
    [message] = warnings_of(split("train", ALL), split("val", FEWER), **decode)
    files = [tmp_path / name / "classes.json" for name in ("train", "val")]
    start = f"the class 'c' has the number 2 by {files[0]} and 1 by {files[1]}, so that labels of"
    assert message.startswith(f"{start} val do not mean the same everywhere; pack one")


@pytest.mark.parametrize("other", [ALL, {"a": 0, "b": 1}, list(ALL), {"d": 0}, None, "{"])
def test_numbers_that_agree_are_no_news(split, warnings_of, other):
    assert warnings_of(split("train", ALL), split("val", other)) == []


def test_folders_of_one_split_are_compared_too(split, warnings_of):
    patterns = [split("one", ALL).urls, split("two", FEWER).urls]
    [message] = warnings_of(SplitConfig(patterns), split("val", None))
    assert "labels of train do not mean the same" in message
