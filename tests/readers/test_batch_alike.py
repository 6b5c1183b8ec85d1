"""Splits whose batches are of samples of like size: order, resume, padding, and what is refused."""

import shutil
from itertools import islice

import numpy as np
import pytest

from lightning_shards import LoaderConfig, ShardDataModule, ShardWriter, SplitConfig
from lightning_shards.errors import ConfigError, StateError

SAMPLES = 250  # in windows of 96, of which the last one has 58: two groups, and 10 samples
LENGTHS = np.random.default_rng(7).integers(1, 1000, SAMPLES)
MIX = {"web": {"urls": "a.tar", "weight": 1}}
ALIKE = {"field": "text", "group": 24}


def pack(folder, lengths):
    with ShardWriter(folder, max_samples=60) as writer:
        for number, length in enumerate(lengths):
            writer.write({"__key__": f"{number:03d}", "txt": "a" * length, "cls": str(number % 10)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alike")
    pack(folder, LENGTHS)
    return folder


@pytest.fixture
def make(folder, tmp_path):
    def module(urls=folder, *, batch_size=4, num_workers=0, seed=0, pool="processes", **split):
        settings = {"sampling": "shuffled", "shuffle_run": 8, "shuffle_block": 100}
        return ShardDataModule(
            SplitConfig(f"{urls}/*.tar", **settings | {"batch_alike": ALIKE} | split),
            fields={"text": "txt", "label": "cls"},
            batch_size=batch_size,
            num_workers=num_workers,
            seed=seed,
            loader=LoaderConfig(cache_dir=str(tmp_path / "cache"), pool=pool),
        )

    return module


def steps_of(module, world_size=1, state=None, stop=None):
    """The sample numbers of each step of the rest of an epoch, and the state of the last rank."""
    ranks = []
    for rank in range(world_size):
        with module.loader("train", rank=rank, world_size=world_size) as loader:
            if state:
                loader.load_state_dict(state)
            batches = islice(loader, stop)
            ranks.append([list(map(int, batch["__key__"])) for batch in batches])
            saved = loader.state_dict()
    return [flat(step) for step in zip(*ranks, strict=True)], saved


def flat(steps):
    return [number for step in steps for number in step]


def padding(steps, batch_size):
    numbers = np.array(flat(steps)).reshape(-1, batch_size)
    return 1 - LENGTHS[numbers].mean() / LENGTHS[numbers].max(axis=1).mean()


@pytest.mark.parametrize(
    ("batch_size", "world_size", "workers"),
    [
        (5, 5, {}),
        (5, 2, {"num_workers": 2, "pool": "threads"}),
        (10, 1, {"num_workers": 2}),  # processes find the sizes themselves
    ],
)
def test_the_order_is_one_for_all_batch_sizes_ranks_and_workers(
    make, batch_size, world_size, workers
):
    whole, _ = steps_of(make(batch_size=1))
    assert sorted(flat(whole)) == list(range(SAMPLES))
    assert flat(steps_of(make(batch_size=batch_size, **workers), world_size)[0]) == flat(whole)


@pytest.mark.parametrize("sampling", ["shuffled", "resampled", "sequential"])
def test_a_run_goes_on_in_the_middle_with_other_ranks_and_batches(make, sampling):
    whole, _ = steps_of(make(batch_size=1, sampling=sampling))
    begun, state = steps_of(make(batch_size=3, sampling=sampling), 4, stop=9)
    rest, _ = steps_of(make(batch_size=71, sampling=sampling), 2, state)
    assert flat(begun) == flat(whole)[:108]
    assert flat(rest) == flat(whole)[108:250]


@pytest.mark.parametrize("sampling", ["shuffled", "resampled"])
def test_batches_are_filled_up_less(make, sampling):
    alike = {"batch_alike": {"field": "text", "group": 12}, "shuffle_block": 240}
    before, _ = steps_of(make(batch_size=12, batch_alike=None, sampling=sampling, reader="indexed"))
    after, _ = steps_of(make(batch_size=12, sampling=sampling, **alike))
    assert padding(before, 12) > 0.4
    assert padding(after, 12) < 0.05


def test_members_are_compared_by_the_first_suffix_that_a_sample_has(make):
    """Labels are of one size, so that nothing is sorted by them."""
    alike = {"batch_alike": {"field": "label", "group": 12}, "shuffle_block": 240}
    blind, sorted_by_text = (
        steps_of(make(batch_size=12, fields={"label": suffixes}, decode={"label": "raw"}, **alike))
        for suffixes in ("flac;cls;txt", "flac;txt;cls")
    )
    assert padding(blind[0], 12) > 0.4
    assert padding(sorted_by_text[0], 12) < 0.05


def test_samples_that_are_left_out_stay_out(make, tmp_path):
    (tmp_path / "out.txt").write_text("\n".join(f"{number:03d}" for number in range(0, 250, 5)))
    steps, _ = steps_of(make(batch_size=8, exclude=str(tmp_path / "out.txt")))
    assert sorted(flat(steps)) == [number for number in range(250) if number % 5]


@pytest.mark.parametrize(
    ("saved", "resumed", "message"),
    [
        (ALIKE, {**ALIKE, "group": 12}, "alike_group=24, this run has 12"),
        (ALIKE, {"field": "label", "group": 24}, "batch_alike='txt', this run has 'cls'"),
        (None, ALIKE, "batch_alike=None, this run has 'txt'"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(make, saved, resumed, message):
    _, state = steps_of(make(batch_alike=saved, reader="indexed"), stop=3)
    with pytest.raises(StateError, match=f"made with {message}; set it back"):
        steps_of(make(batch_alike=resumed, reader="indexed"), state=state)


@pytest.mark.parametrize("at", [0, 100, 200])
def test_a_checkpoint_is_refused_where_sizes_have_changed(make, folder, tmp_path, at):
    order, _ = steps_of(make(batch_size=1))
    changed = LENGTHS.copy()
    changed[flat(order)[at]] += 1
    shutil.rmtree(tmp_path / "cache")
    pack(tmp_path / "other", changed)
    _, state = steps_of(make(batch_size=10), stop=1 + at // 10)
    with pytest.raises(
        StateError, match=r"with alike_sizes='.*', this run .* put the old shards back"
    ):
        steps_of(make(tmp_path / "other", batch_size=10), state=state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"batch_alike": {"field": "text", "group": 1}},
            "batch_alike.group must be .* at least 2, got 1",
        ),
        ({"batch_alike": 64}, "batch_alike must be a BatchAlikeConfig or a dict of its settings"),
        ({"reader": "stream"}, "'text'.* does not go with reader='stream'.* leave one"),
        ({"urls": None, "mix": MIX, "dataset_size": 9}, "does not go with a mix"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        SplitConfig(**{"urls": "a.tar", "batch_alike": ALIKE} | settings)
