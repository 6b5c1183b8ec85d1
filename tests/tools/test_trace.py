"""`lightning-shards trace` says what training gets."""

import json

import pytest

from lightning_shards import ShardDataModule
from lightning_shards.tools import trace
from tests.mixed_shards import mix_of

WORLD_SIZE, EPOCHS = 2, 3
COUNTS = [5, 9, 0, 8]
FIFTH = {"hash_of": "key", "of": 5, "parts": [0]}

SPLITS = {
    "kept indexed": {"train": {"sampling": "shuffled", "exclude": FIFTH}},
    "kept stream": {"train": {"exclude": FIFTH, "reader": "stream"}},
    "resampled stream": {"train": {"reader": "stream"}},
    "resampled stream, no buffer": {"train": {"reader": "stream", "shuffle_buffer": 0}},
    "shuffled stream": {"train": {"sampling": "shuffled", "reader": "stream"}},
    "shuffled indexed": {"train": {"sampling": "shuffled", "shuffle_run": 3, "shuffle_block": 8}},
    "resampled indexed": {"train": {"reader": "indexed", "shuffle_run": 2}},
    "padded": {"train": {"sampling": "shuffled", "remainder": "pad"}},
    "padded stream": {"train": {"sampling": "shuffled", "remainder": "pad", "reader": "stream"}},
    "balanced": {"val": {}},
    "balanced stream": {"val": {"reader": "stream"}},
}


@pytest.fixture(scope="module")
def folder(pack_into, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    pack_into(folder, COUNTS)
    return folder


@pytest.fixture
def settings(folder):
    """The options of `ShardDataModule` in plain values; splits without urls get them."""

    def make(splits, **options):
        urls = {"urls": str(folder / "shard-*.tar")}
        return {
            "fields": {"label": "cls"},
            "batch_size": 2,
            "num_workers": 0,
            "loader": {"cache_dir": str(folder / "cache")},
            **{name: urls | split for name, split in splits.items()},
        } | options

    return make


@pytest.fixture
def write_config(tmp_path, settings):
    """Writes a configuration of LightningCLI (JSON is YAML), with a model that does not exist."""

    def write(splits=None, *, trainer=None, text=None, **options):
        path = tmp_path / "config.yaml"
        document = {
            "seed_everything": 3,
            "trainer": {"devices": WORLD_SIZE} if trainer is None else trainer,
            "model": {"class_path": "no.such.Model"},
            "data": settings({"train": {}} if splits is None else splits, **options),
        }
        path.write_text(json.dumps(document) if text is None else text)
        return path

    return write


@pytest.fixture
def traced(capsys):
    """Runs the command and gives its JSON document."""

    def run(config, *, epoch=0, steps="0:1", more=()):
        command = ["--config", str(config), "--epoch", str(epoch), "--steps", steps, "--json"]
        trace.main([*command, *more])
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def fails(capsys):
    """Runs the command and gives the one line that it ends with."""

    def run(config, *more, epoch=0, steps="0:1"):
        with pytest.raises(SystemExit) as ended:
            trace.main(["--config", str(config), f"--epoch={epoch}", f"--steps={steps}", *more])
        printed = capsys.readouterr()
        assert (ended.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
        return printed.err

    return run


def grouped(document, value):
    """A value of each row: by step, then by rank."""
    steps = {}
    for row in document["rows"]:
        steps.setdefault(row["step"], {}).setdefault(row["rank"], []).append(value(row))
    return [list(ranks.values()) for ranks in steps.values()]


def rows_in(document):
    return grouped(document, lambda row: [row["key"], row["shard"], row["sample"]])


def rows_of(batch):
    ids = batch["__id__"].tolist()
    return [[key, *each] for key, each in zip(batch["__key__"], ids, strict=True)]


# --- it is what training gets ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "num_workers"), [*((name, 3) for name in SPLITS), ("shuffled indexed", 0)]
)
def test_it_equals_what_the_loaders_give(name, num_workers, write_config, traced, folder):
    split, loader = next(iter(SPLITS[name])), {"cache_dir": str(folder / "cache")}
    config = write_config(
        SPLITS[name], seed=5, num_workers=num_workers, loader=loader | {"pool": "threads"}
    )
    module = ShardDataModule.from_config(config)
    loaders = [module.loader(split, rank=rank, world_size=WORLD_SIZE) for rank in range(WORLD_SIZE)]
    with loaders[0], loaders[1]:
        for epoch in range(EPOCHS):  # the loaders' streams roll on from epoch to epoch
            ranks = [[rows_of(batch) for batch in loader] for loader in loaders]
            expected = [list(step) for step in zip(*ranks, strict=True)]
            for start, stop in [(0, len(expected)), (2, 3)][: 1 + (epoch == 1)]:
                steps = f"{start}:{stop}"
                document = traced(config, epoch=epoch, steps=steps, more=["--split", split])
                assert rows_in(document) == expected[start:stop]


# --- what it prints -------------------------------------------------------------------------------


def test_the_table_has_a_line_per_sample(write_config, capsys):
    config = write_config({"val": {}})
    trace.main(["--config", str(config), "--split=val", "--epoch=0", "--steps=1:2"])
    told = [line.split() for line in capsys.readouterr().out.splitlines()[-5:]]
    assert told == [
        ["step", "rank", "row", "shard", "sample", "key"],
        ["1", "0", "0", "0", "4", "000004"],
        ["1", "0", "1", "1", "0", "000005"],
        ["1", "1", "0", "1", "1", "000006"],
        ["1", "1", "1", "1", "2", "000007"],
    ]


# --- mixtures -----------------------------------------------------------------------------------


NAMES = ("web", "labels", "more")


@pytest.mark.parametrize(
    ("sampling", "reader"),
    [("shuffled", "indexed"), ("resampled", "indexed"), ("resampled", "stream")],
)
def test_each_row_comes_with_the_name_of_its_component(
    sampling, reader, write_config, traced, tmp_path
):
    mix = mix_of(tmp_path / "shards", NAMES)
    for component in mix.values():
        component.pop("decode", None)
    mix["labels"] |= {"fields": {"label": "class.txt"}, "decode": {"label": "int"}}
    mix["more"] |= {"fields": {"label": "cls"}}
    train = {"mix": mix, "round": 8, "dataset_size": 32, "sampling": sampling, "reader": reader}
    config = write_config({"train": train | {"urls": None}})
    module = ShardDataModule.from_config(config)
    loaders = [module.loader("train", rank=rank, world_size=WORLD_SIZE) for rank in range(2)]
    steps = list(zip(*(list(loader) for loader in loaders), strict=True))
    document = traced(config, steps=f"0:{len(steps)}")
    assert grouped(document, lambda row: row["component"]) == [
        [[NAMES[number] for number in batch["__component__"]] for batch in ranks] for ranks in steps
    ]
    assert grouped(document, lambda row: row["key"]) == [
        [batch["__key__"] for batch in ranks] for ranks in steps
    ]


# --- what is refused ------------------------------------------------------------------------------


ABSENT = {"urls": "/absent/absent.tar"}


@pytest.mark.parametrize(
    ("options", "steps", "said"),
    [
        *[({}, steps, "--steps must be A:B") for steps in ("5", "a:b", "3:3", "-1:2", "1:2:3", "")],
        ({}, "4:6", "not in an epoch of 5 steps"),
        ({"batch": 2}, "0:1", "batch"),
        ({"batch_size": 0}, "0:1", "batch"),
        ({"fields": None}, "0:1", "fields"),
        ({"splits": {"train": {"url": "x"}}}, "0:1", "train"),
        ({"splits": {"train": ABSENT}}, "0:1", "absent.tar"),
        (
            {"trainer": {"devices": "${nowhere}"}},
            "0:1",
            "Interpolation key 'nowhere' not found, at 'trainer.devices'",
        ),
        ({"seed": "${nowhere}"}, "0:1", "Interpolation key 'nowhere' not found, at 'data.seed'"),
        *[
            ({"text": text}, "0:1", "config")
            for text in ("", "[1, 2]", "data:", "data: 3", "{", "model: {}", "\0")
        ],
    ],
)
def test_what_cannot_be_traced_is_refused(options, steps, said, write_config, fails):
    assert said in fails(write_config(**options), steps=steps)


@pytest.mark.parametrize("split", ["val", "nonsense"])
def test_an_unknown_split_is_refused(split, write_config, fails):
    assert f"there is no {split!r} split" in fails(write_config(), f"--split={split}")
