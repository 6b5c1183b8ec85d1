"""Each row of the page's table of arguments: equal values of the same tars."""

import itertools
from pathlib import Path

import pytest
from same_tars import Cases, loader, names_on_page, theirs, values, values_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.with_length.. only sets the value of __len__"),
    # webdataset leaves tars open that were not read to their ends
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CASES = Cases()
row = CASES.of


@row("urls=")
def _(data):
    pattern = f"{Path(data.urls[0]).parent}/{{0..3}}.tar"
    assert values(loader(data, urls=pattern)) == values(loader(data))
    return values_of(theirs(data, urls=pattern).decode()), values(loader(data, urls=pattern))


@row("shardshuffle=", "detshuffle=", "seed=")
def _(data):
    for settings in ({"shardshuffle": 4}, {"shardshuffle": 4, "detshuffle": True, "seed": 1}):
        shuffled = values_of(theirs(data, **settings).decode())
        ours = values(loader(data, "train", sampling="shuffled", seed=1))
        assert ours == values(loader(data, "train", sampling="shuffled", seed=1))
        assert ours != values(loader(data, "train", sampling="shuffled", seed=2))
    return sorted(shuffled), sorted(ours)


@row("nodesplitter=", "workersplitter=")
def _(data):
    """Each sample is served once over two ranks of two workers."""
    served = []
    for rank, worker in itertools.product(range(2), range(2)):

        def split(urls, start=2 * rank + worker):
            return itertools.islice(urls, start, None, 4)

        served += values_of(theirs(data, nodesplitter=split, workersplitter=None).decode())
    ours = [
        loader(
            data, num_workers=2, batch_size=2, place={"rank": rank, "world_size": 2}, pool="threads"
        )
        for rank in range(2)
    ]
    made = []
    for each in ours:
        with each:
            made += values(each)
    return sorted(served), sorted(made)


@row("resampled=", "mode=")
def _(data):
    """Draws differ; both are of all samples, and may repeat some."""
    known = values_of(theirs(data).decode())
    split = {"sampling": "resampled", "reader": "stream", "dataset_size": 40}
    ours = values(loader(data, "train", **split))
    for settings in ({"resampled": True}, {"mode": "resampled"}):
        drawn = values_of(theirs(data, **settings).decode().with_epoch(40))
        assert len({key for key, _ in drawn}) < len(drawn) == len(ours)
        assert all(sample in known for sample in drawn + ours)
    return True, len({key for key, _ in ours}) < len(ours)


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_true(data, name):
    expected, ours = CASES[name](data)
    assert ours == expected
    assert expected


def test_the_arguments_are_on_the_page():
    assert CASES.keys() <= names_on_page()
