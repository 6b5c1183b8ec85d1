"""Splits of which samples are left out: what is served, resumed and refused."""

from collections import Counter
from itertools import chain

import pytest

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError, StateError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import batch_keys

COUNTS = [5, 0, 9, 3, 12, 1]
LEFT_OUT = [0, 3, 4, 14, 15, 16, 20, 28, 29]  # the first and last ones, a run, a whole shard
LEFT = [number for number in range(30) if number not in LEFT_OUT]
HALF = {"hash_of": "key", "of": 2, "parts": [0]}
KINDS = [
    (reader, sampling)
    for reader in ("indexed", "stream")
    for sampling in ("shuffled", "sequential", "resampled")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pack_into):
    folder = tmp_path_factory.mktemp("kept")
    pack_into(folder, COUNTS)
    (folder / "out.txt").write_text("\n".join(f"{number:06d}" for number in LEFT_OUT))
    return folder


@pytest.fixture
def make(folder):
    def module(*, batch_size=2, num_workers=0, seed=0, **split):
        chosen = {"exclude": str(folder / "out.txt"), "shuffle_run": 2, "shuffle_block": 8}
        return ShardDataModule(
            SplitConfig(str(folder / "shard-*.tar"), **chosen | split),
            fields={"label": "cls"},
            batch_size=batch_size,
            num_workers=num_workers,
            seed=seed,
            loader=LoaderConfig(cache_dir=str(folder / "cache")),
        )

    return module


def rows_of(batches):
    """The number of each sample and its weight."""
    rows = []
    for batch in batches:
        keys = batch["__key__"]
        weights = list(batch.get("__weight__", [1] * len(keys)))
        rows += [(int(key), int(weight)) for key, weight in zip(keys, weights, strict=True)]
    return rows


def shares(module, world_size, num_workers):
    """All batches of an epoch by rank, made by so many workers of each."""
    made = []
    for rank in range(world_size):
        place = Place(rank, world_size)
        source = module.source("train")
        workers = [
            source.batches(place.with_worker(worker, num_workers), Cursor())
            for worker in range(num_workers)
        ]
        steps = source.epochs.plan(world_size).steps
        made.append([next(workers[step % num_workers]).batch for step in range(steps)])
    return made


@pytest.mark.parametrize(
    ("world_size", "num_workers", "remainder"), [(1, 3, "drop"), (3, 2, "pad"), (3, 2, "balanced")]
)
@pytest.mark.parametrize(("reader", "sampling"), KINDS)
def test_every_kept_sample_is_served_once_and_no_other(
    make, reader, sampling, remainder, world_size, num_workers
):
    module = make(reader=reader, sampling=sampling, remainder=remainder)
    rows = rows_of(chain.from_iterable(shares(module, world_size, num_workers)))
    plan = module.source("train").epochs.plan(world_size)
    served = Counter(number for number, weight in rows if weight)
    assert {number for number, _ in rows} <= set(LEFT)
    assert plan.samples == len(LEFT)
    if sampling != "resampled":
        assert set(served.values()) == {1}
        assert len(served) == len(LEFT) - plan.dropped


@pytest.mark.parametrize(("reader", "sampling"), [KINDS[0], KINDS[-1]])
def test_the_replay_gives_the_keys_that_are_served(make, reader, sampling):
    module = make(reader=reader, sampling=sampling, remainder="pad")
    loader = module.loader("train", rank=1, world_size=2)
    keys = [batch["__key__"] for batch in loader]
    rows = batch_keys(module.source("train"), Place(1, 2), 0, range(len(keys)), num_workers=1)
    assert [[row.key for row in batch] for batch in rows] == keys


@pytest.mark.parametrize("other", [{"exclude": None}, {"keep": HALF}], ids=["none", "one more"])
@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_a_checkpoint_of_another_filter_is_refused(make, reader, other):
    filtered = make(reader=reader, sampling="shuffled").loader("train")
    another = make(reader=reader, sampling="shuffled", **other).loader("train")
    for loader, state in ((filtered, another.state_dict()), (another, filtered.state_dict())):
        with pytest.raises(StateError, match="other samples are left by `keep` and `exclude`"):
            loader.load_state_dict(state)


@pytest.mark.parametrize("sampling", ["shuffled", "resampled"])
@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_no_sample_that_is_left_out_stands_for_a_bad_one(folder, make, reader, sampling):
    module = make(reader=reader, sampling=sampling, on_bad_sample="substitute", max_bad=30)
    module.transforms = {"label": _Refuses()}
    rows = rows_of(module.loader("train"))
    assert any(weight == 0 for _, weight in rows)
    assert {number for number, _ in rows} <= set(LEFT)


class _Refuses:
    """Cannot bear labels 1 and 5."""

    def __call__(self, label):
        if label in (1, 5):
            raise ValueError(label)
        return label


def test_a_size_of_the_data_set_that_differs_from_what_is_left_is_refused(make):
    with pytest.raises(
        ConfigError, match=f"dataset_size=30 .* differs from the {len(LEFT)} samples that are left"
    ):
        make(sampling="shuffled", dataset_size=30).source("train")
