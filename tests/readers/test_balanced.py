"""Splits whose classes are drawn equally often: what is served, resumed, kept and refused."""

from collections import Counter

import pyarrow as pa
import pytest
from pyarrow import parquet
from webdataset.writer import TarWriter

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError, StateError

COUNTS = [30, 0, 50, 20]
CLASSES = ["cat", "dog", "owl"]
KINDS = [0 if n % 10 else 1 + (n % 50 == 0) for n in range(sum(COUNTS))]  # 90 : 8 : 2
SHARE = 0.05  # of 3,000 draws: 5 standard deviations


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shards whose members say the class by number, by name, and not at all."""
    folder, number = tmp_path_factory.mktemp("balanced"), 0
    for shard, count in enumerate(COUNTS):
        with TarWriter(str(folder / f"shard-{shard}.tar")) as writer:
            for _ in range(count):
                kind = KINDS[number]
                sample = {"cls": str(kind), "txt": CLASSES[kind] + "\n", "json": f"[{kind}]"}
                odd = {"odd.cls": "1"} if number else {}
                writer.write({"__key__": f"{number:03d}", **sample, **odd})
                number += 1
    keys = [f"{number:03d}" for number in range(sum(COUNTS))]
    columns = {"name": [CLASSES[kind] for kind in KINDS], "number": KINDS}
    parquet.write_table(pa.table({"__key__": keys, **columns}), folder / "kinds.parquet")
    return folder


@pytest.fixture
def make(folder):
    def module(split=(), **settings):
        given = {"balance": "kind", "sampling": "resampled", "dataset_size": 3000} | dict(split)
        fields = {"kind": "cls", "name": "txt", "list": "json", "odd": "odd.cls?"}
        cache = LoaderConfig(cache_dir=str(folder / "cache"))
        common = {"batch_size": 60, "num_workers": 0, "loader": cache}
        train = SplitConfig(str(folder / "shard-*.tar"), **given)
        return ShardDataModule(train, fields=fields, **common | settings)

    return module


def shares(module):
    kinds = [KINDS[int(key)] for batch in module.loader("train") for key in batch["__key__"]]
    return {CLASSES[kind]: times / len(kinds) for kind, times in Counter(kinds).items()}


def joined(folder, column):
    return {"label": {"table": str(folder / "kinds.parquet"), "column": column}}


@pytest.mark.parametrize("balance", ["kind", "name", "of a join's numbers", "of a join's names"])
def test_classes_come_equally_often(make, folder, balance):
    split = {"balance": balance}
    if "join" in balance:
        column = "number" if "numbers" in balance else "name"
        split = {"balance": "label", "join": joined(folder, column)}
    assert shares(make(split)) == pytest.approx(dict.fromkeys(CLASSES, 1 / 3), abs=SHARE)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [({"dog": 2}, {"cat": 0.25, "dog": 0.5, "owl": 0.25}), ({"cat": 0}, {"dog": 0.5, "owl": 0.5})],
)
def test_classes_come_by_their_weights_and_numbers_have_the_names_of_classes(
    make, weights, expected
):
    by_text = make({"balance": "name", "balance_weights": weights})
    by_class = make(
        {"balance_weights": weights}, decode={"kind": "class"}, classes={"kind": CLASSES}
    )
    numbers = {str(CLASSES.index(name)): weight for name, weight in weights.items()}
    by_number = make({"balance_weights": numbers})
    for module in (by_text, by_class, by_number):
        assert shares(module) == pytest.approx(expected, abs=SHARE)


def test_a_run_goes_on_with_the_next_draw(make):
    loader = make().loader("train")
    keys = [batch["__key__"] for epoch in range(2) for batch in loader]
    resumed = make().loader("train")
    state = loader.state_dict() | {"epoch": 1, "samples": 7 * 60}
    resumed.load_state_dict(state)
    assert [batch["__key__"] for batch in resumed] == keys[50 + 7 :]


OTHERS = {
    "weights": {"balance_weights": {"0": 2}},
    "no balance": {"balance": None, "reader": "indexed"},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_checkpoint_of_other_settings_is_refused(make, other):
    balanced, another = make().loader("train"), make(other).loader("train")
    for loader, state in ((balanced, another.state_dict()), (another, balanced.state_dict())):
        with pytest.raises(StateError, match="balance"):
            loader.load_state_dict(state)


YAK = {"decode": {"kind": "class"}, "classes": {"kind": [*CLASSES, "yak"]}}
REFUSED = {
    "list": ({"balance": "list"}, "needs one int or the name of a class, and sample '000'"),
    "none": ({"balance": "odd"}, "sample '000' of .*shard-0.tar has 'None'; name another field"),
    "no field": ({"balance": "nope"}, r"none of the fields, which are \['kind', 'name'"),
    "unknown": ({"balance_weights": {"9": 1}}, r"of \['9'\] there is no sample, .* of 3 classes"),
    "all 0": ({"balance_weights": dict.fromkeys("012", 0)}, "a weight above 0, at least one"),
    "below 0": ({"balance_weights": {"0": -1}}, "has '0': -1; write numbers from 0"),
}


@pytest.mark.parametrize(("split", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_balanced_is_refused(make, split, message):
    with pytest.raises(ConfigError, match=message):
        make(split).source("train")


def test_a_class_without_samples_is_refused_unless_none_is_asked_for(make):
    with pytest.raises(ConfigError, match=r"of \['yak'\] there is no sample"):
        make(**YAK).source("train")
    assert "yak" not in shares(make({"balance_weights": {"yak": 0}}, **YAK))
