"""The map-style face: samples by number, alike in every process."""

import pickle
import shutil

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_shards import ShardDataset
from lightning_shards.errors import ConfigError, ShardNotFoundError

COUNTS = [5, 0, 9, 6]
NUM = sum(COUNTS)
IDS = [[shard, sample] for shard, count in enumerate(COUNTS) for sample in range(count)]


def noisy(image, rng):
    return image + torch.as_tensor(rng.integers(0, 100, image.shape, dtype=np.uint8))


def globally_noisy(image):
    return image + torch.randint(0, 100, image.shape, dtype=torch.uint8)


@pytest.fixture(scope="module")
def folder(pack_into, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dataset")
    pack_into(folder, COUNTS)
    return folder


@pytest.fixture
def make_dataset(folder):
    def make(urls=None, **options):
        defaults = {
            "fields": {"image": "jpg;png", "label": "cls"},
            "decode": {"image": "gray"},
            "cache_dir": str(folder / "cache"),
        }
        return ShardDataset(urls or f"{folder}/shard-*.tar", **defaults | options)

    return make


def plain(sample):
    """A sample, or a batch, of which two can be compared."""
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in sample.items()
    }


def test_samples_come_in_file_order_with_their_ids(make_dataset):
    samples = list(make_dataset())  # asks for numbers until there is an IndexError
    assert [sample["__id__"].tolist() for sample in samples] == IDS
    assert [sample["__key__"] for sample in samples] == [f"{number:06d}" for number in range(NUM)]
    assert samples[0]["__id__"].dtype == torch.int64
    assert list(samples[0]) == ["image", "label", "__key__", "__id__"]


@pytest.mark.parametrize("number", [-NUM - 1, NUM])
def test_a_number_beyond_the_end_is_an_index_error(number, make_dataset):
    assert make_dataset()[-1]["__id__"].tolist() == IDS[-1]
    with pytest.raises(IndexError, match="in a data set of 20"):
        _ = make_dataset()[number]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("transform", [noisy, globally_noisy])
def test_a_data_loader_gives_the_same_with_any_number_of_workers(
    num_workers, transform, make_dataset
):
    dataset = make_dataset(transforms={"image": transform}, seed=4)
    loader = DataLoader(
        dataset, batch_size=6, num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )  # fmt: skip
    batches = [plain(batch) for batch in loader]
    expected = [plain(sample) for sample in dataset]
    assert [len(batch["label"]) for batch in batches] == [6, 6, 6, 2]
    for name in ("image", "label", "__key__", "__id__"):
        assert [row for batch in batches for row in batch[name]] == [
            each[name] for each in expected
        ]


@pytest.mark.parametrize("transform", [noisy, globally_noisy])
def test_an_epoch_a_seed_and_a_number_have_randomness_of_their_own(transform, make_dataset):
    def added(number, seed, epoch):
        dataset = make_dataset(transforms={"image": transform}, seed=seed)
        dataset.set_epoch(epoch)
        return (dataset[number]["image"].numpy() - number).tobytes()

    assert len({added(3, 0, 0), added(3, 0, 1), added(3, 1, 0), added(4, 0, 0)}) == 4
    assert added(3, 0, 1) == added(3, 0, 1)


def test_it_can_be_pickled_with_its_shards_open(make_dataset):
    dataset = make_dataset(transforms={"image": noisy}, seed=3)
    dataset.set_epoch(2)
    first = plain(dataset[7])
    text = pickle.dumps(dataset)
    assert len(text) < 5_000
    assert plain(pickle.loads(text)[7]) == first


def test_files_are_closed_with_the_data_set(make_dataset, folder, tmp_path, open_files):
    shutil.copytree(folder, tmp_path / "own")
    dataset = make_dataset(f"{tmp_path}/own/shard-*.tar")
    assert len(list(dataset)) == NUM
    assert open_files() != []
    del dataset
    assert open_files() == []


def test_making_one_touches_no_file(make_dataset):
    dataset = make_dataset("/absent/shard-{000..999}.tar")
    with pytest.raises(ShardNotFoundError):
        len(dataset)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode": {"label": "pickle"}}, "allow_unsafe"),
        ({"seed": "1"}, "seed must be a whole number of at least 0, got '1'$"),
        ({"urls": 3}, "^urls must be a path, a pattern or a list of them, got a int$"),
    ],
)
def test_wrong_options_are_refused_at_once(options, message, make_dataset):
    with pytest.raises(ConfigError, match=message):
        make_dataset(**options)
