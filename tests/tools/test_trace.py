"""`lightning-shards trace` says what training gets."""

import pytest

from lightning_shards import ShardDataModule
from lightning_shards.tools import trace
from tests.mixed_shards import mix_of

WORLD_SIZE, EPOCHS = 2, 3
COUNTS = [5, 9, 0, 8]
FIFTH = {"hash_of": "key", "of": 5, "parts": [0]}

SPLITS = {
    "kept indexed": {"train": {"sampling": "shuffled", "exclude": FIFTH}},
    "resampled stream": {"train": {"reader": "stream", "exclude": FIFTH}},
    "shuffled stream": {"train": {"sampling": "shuffled", "reader": "stream"}},
    "shuffled indexed": {"train": {"sampling": "shuffled", "shuffle_run": 3, "shuffle_block": 8}},
    "resampled indexed": {"train": {"reader": "indexed", "shuffle_run": 2}},
    "padded": {"train": {"sampling": "shuffled", "remainder": "pad"}},
    "balanced": {"val": {}},
    "balanced stream": {"val": {"reader": "stream"}},
}


@pytest.fixture(scope="module")
def folder(pack_into, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    pack_into(folder, COUNTS)
    return folder


@pytest.fixture
def config(write_config, folder):
    """Writes a configuration with these splits, or with another text."""
    urls = {"urls": str(folder / "shard-*.tar")}
    loader = {"cache_dir": str(folder / "cache"), "pool": "threads"}

    def write(splits=None, *, text=None, **options):
        made = {name: urls | split for name, split in (splits or {"train": {}}).items()}
        given = {"train": None, "loader": loader} | made | options
        path = write_config(trainer={"devices": WORLD_SIZE}, **given)
        if text is not None:
            path.write_text(text)
        return path

    return write


@pytest.fixture
def traced(run_json):
    """Runs the command and gives its JSON document."""

    def run(config, *, epoch=0, steps="0:1", split="train"):
        given = ["--config", config, "--epoch", epoch, "--steps", steps, "--split", split]
        return run_json(trace.main, given)[1]

    return run


def grouped(document, *names):
    """These values of each row: by step, then by rank."""
    steps = {}
    for row in document["rows"]:
        values = [row[name] for name in names]
        steps.setdefault(row["step"], {}).setdefault(row["rank"], []).append(values)
    return [list(ranks.values()) for ranks in steps.values()]


def rows_of(batch):
    ids = batch["__id__"].tolist()
    return [[key, *each] for key, each in zip(batch["__key__"], ids, strict=True)]


@pytest.mark.parametrize(
    ("name", "num_workers"), [*((name, 3) for name in SPLITS), ("shuffled indexed", 0)]
)
def test_it_equals_what_the_loaders_give(name, num_workers, config, traced):
    split = next(iter(SPLITS[name]))
    path = config(SPLITS[name], seed=5, num_workers=num_workers)
    module = ShardDataModule.from_config(path)
    loaders = [module.loader(split, rank=rank, world_size=WORLD_SIZE) for rank in range(WORLD_SIZE)]
    with loaders[0], loaders[1]:
        for epoch in range(EPOCHS):  # the loaders' streams roll on from epoch to epoch
            ranks = [[rows_of(batch) for batch in loader] for loader in loaders]
            expected = [list(step) for step in zip(*ranks, strict=True)]
            for start, stop in [(0, len(expected)), (2, 3)][: 1 + (epoch == 1)]:
                document = traced(path, epoch=epoch, steps=f"{start}:{stop}", split=split)
                assert grouped(document, "key", "shard", "sample") == expected[start:stop]


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_each_row_comes_with_the_name_of_its_component(reader, config, traced, tmp_path):
    names = ("web", "labels", "more")
    mix = mix_of(tmp_path / "shards", names)
    for component in mix.values():
        component.pop("decode", None)
    mix["labels"] |= {"fields": {"label": "class.txt"}, "decode": {"label": "int"}}
    mix["more"] |= {"fields": {"label": "cls"}}
    train = {"mix": mix, "round": 8, "dataset_size": 32, "sampling": "resampled", "reader": reader}
    path = config({"train": train | {"urls": None}})
    module = ShardDataModule.from_config(path)
    loaders = [module.loader("train", rank=rank, world_size=WORLD_SIZE) for rank in range(2)]
    steps = list(zip(*(list(loader) for loader in loaders), strict=True))
    assert grouped(traced(path, steps=f"0:{len(steps)}"), "component", "key") == [
        [
            [[names[number], key] for number, key in zip(numbers, batch["__key__"], strict=True)]
            for batch in ranks
            for numbers in [batch["__component__"].tolist()]
        ]
        for ranks in steps
    ]


@pytest.mark.parametrize(
    ("options", "given", "said"),
    [
        *[({}, f"--steps={steps}", "--steps must be A:B") for steps in ("5", "3:3", "-1:2")],
        ({}, "--steps=4:6", "not in an epoch of 5 steps"),
        ({"batch": 2}, "", "batch"),
        ({"seed": "${nowhere}"}, "", "Interpolation key 'nowhere' not found, at 'data.seed'"),
        *[({"text": text}, "", "config") for text in ("[1, 2]", "data: 3", "{", "model: {}")],
        ({}, "--split=nonsense", "there is no 'nonsense' split"),
    ],
)
def test_what_cannot_be_traced_is_refused(options, given, said, config, capsys):
    command = ["--config", str(config(**options)), "--epoch=0", "--steps=0:1"]
    with pytest.raises(SystemExit, match="2"):
        trace.main([*command, *([given] if given else [])])
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert said in printed.err
