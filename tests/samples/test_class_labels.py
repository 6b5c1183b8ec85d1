"""Fields that are decoded as `class`: from the settings to the batches of every reader."""

import json
import pickle

import pytest
import torch

from lightning_shards import ShardWriter, SplitConfig
from lightning_shards.errors import ConfigError, SampleError, StateError

LABELS = ["cat", "dog\n", "1", "cat", "0", "bird"]
NAMES = ["cat", "dog", "bird"]


@pytest.fixture
def shards(tmp_path):
    """Two shards of samples with these labels; their pattern."""

    def written(labels=LABELS, classes=NAMES, folder="data"):
        cache = tmp_path / "cache"
        with ShardWriter(tmp_path / folder, max_samples=3, cache_dir=cache) as writer:
            for number, label in enumerate(labels):
                writer.write({"__key__": f"{number:03d}", "cls": label})
        if classes is not None:
            (tmp_path / folder / "classes.json").write_text(json.dumps(classes))
        return str(tmp_path / folder / "*.tar")

    return written


@pytest.fixture
def module(make_module):
    def made(urls, *, split=None, **settings):
        split = SplitConfig(urls, **{"sampling": "sequential"} | (split or {}))
        return make_module(split, batch_size=3, **{"decode": {"label": "class"}} | settings)

    return made


def labels_of(module):
    return [batch["label"] for batch in module.loader("train")]


@pytest.mark.parametrize("reader", ["indexed", "stream"])
@pytest.mark.parametrize(
    ("given", "numbers"),
    [(None, [0, 1, 1, 0, 0, 2]), ({"label": ["bird", "dog", "cat"]}, [2, 1, 1, 2, 0, 0])],
)
def test_names_and_numbers_become_numbers(shards, module, reader, given, numbers):
    made = module(shards(), split={"reader": reader}, classes=given)
    batches = labels_of(made)
    assert torch.cat(batches).tolist() == numbers
    assert {batch.dtype for batch in batches} == {torch.int64}
    assert "classes" in made.loader("train").identity
    source = pickle.loads(pickle.dumps(made.source("train")))  # as a worker process gets it
    assert source == made.source("train")


@pytest.mark.parametrize("reader", ["indexed", "stream"])
@pytest.mark.parametrize("transforms", [None, {"label": abs}])
def test_an_unknown_name_names_its_sample_and_the_file(shards, module, reader, transforms):
    urls = shards(["cat", "caat", "dog"])
    with pytest.raises(SampleError) as raised:
        labels_of(module(urls, split={"reader": reader}, transforms=transforms))
    shard = urls.replace("*", "shard-000000")
    classes = urls.replace("*.tar", "classes.json")
    assert str(raised.value) == (
        f"sample '001' of {shard}: member 'cls' of field 'label': 'caat' is none of the 3 classes "
        f"of {classes} ('cat', 'dog', 'bird'); correct the label, or add the class to {classes}"
    )


def test_the_setting_wins_over_the_file_and_that_of_a_split_over_both(shards, module):
    urls = shards(["cat", "dog", "bird"])
    others = {"label": ["dog", "bird", "cat"]}
    assert labels_of(module(urls, classes=others))[0].tolist() == [2, 0, 1]
    split = {"classes": {"label": ["bird", "dog", "cat"]}}
    assert labels_of(module(urls, split=split, classes=others))[0].tolist() == [2, 1, 0]
    assert labels_of(module(urls, split={"classes": {}}, classes=others))[0].tolist() == [0, 1, 2]


def test_numbers_as_names_in_a_file_are_not_guessed(shards, module):
    urls = shards(["1", "0", "2"], ["0", "2", "1"])
    with pytest.raises(ConfigError, match=r"class '2' the number 1, so a label '2' could be"):
        labels_of(module(urls))
    assert labels_of(module(urls, classes={"label": ["0", "2", "1"]}))[0].tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"label": ["a", "a"]}, "has the class 'a' twice"),
        ({"label": "cat"}, "must be a list of names, as in"),
        ({"label": {"cat", "dog"}}, "must be a list of names, as in"),
        ({"image": ["a"]}, "classes names 'image', and the fields that are decoded as 'class'"),
    ],
)
def test_wrong_classes_are_refused_before_any_shard_is_read(module, classes, message):
    with pytest.raises(ConfigError, match=message):
        module("nowhere.tar", classes=classes)
    with pytest.raises(ConfigError, match=message):
        module("nowhere.tar", split={"classes": classes})


def test_a_checkpoint_of_other_classes_is_refused(shards, module):
    urls = shards(["0", "1", "2"])
    state = module(urls).loader("train").state_dict()
    assert state["classes"].startswith("3 names ")
    same = module(urls, classes={"label": NAMES}).loader("train")
    same.load_state_dict(state)
    with pytest.raises(StateError, match=r"made with classes='3 names .*, this run has '3 names"):
        module(urls, classes={"label": NAMES[::-1]}).loader("train").load_state_dict(state)
    with pytest.raises(StateError, match="made with classes=None"):
        same.load_state_dict(module(urls, decode={}).loader("train").state_dict())
    with pytest.raises(StateError, match=r"made with classes='3 names .*, this run has no classes"):
        module(urls, decode={}).loader("train").load_state_dict(state)
