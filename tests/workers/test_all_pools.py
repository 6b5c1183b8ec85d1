"""What workers guarantee, in the names of its tests: the bytes of all pools, and after any stop."""

from functools import partial
from itertools import chain, islice

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from lightning_shards import LoaderConfig, PadCollate, ShardDataModule
from tests.mixed_shards import COUNTS as MIX_COUNTS
from tests.mixed_shards import mix_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ddp,
    pytest.mark.timeout(600),  # eight processes on a loaded core
]

COUNTS = [5, 0, 9, 3, 12, 1]  # 30 samples
EPOCHS, STEPS_OF_EPOCH = 2, 8
CONTEXTS = (("fork", 3), ("forkserver", 2))
"""Start methods, each with a number of workers; `spawn` sends what `forkserver` sends."""

THREADS = ({"pool": "threads"}, {"threads_per_worker": 2})
"""Pools that have threads."""


def jitter(image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return image + torch.from_numpy(rng.random(tuple(image.shape)))


def jitter_twice(image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return jitter(jitter(image, rng), rng)


def jitter_label(label: int, rng: np.random.Generator) -> torch.Tensor:
    return label + torch.from_numpy(rng.random(3))


def jitter_globally(label: int) -> torch.Tensor:
    return label + torch.rand(3) + float(np.random.random())  # noqa: NPY002


@pytest.fixture(scope="module")
def make_loader(tmp_path_factory, pack_into):
    """Makes loaders of rank 1 of 2, over the same shards; 0 workers are the trainer's thread."""
    folder = tmp_path_factory.mktemp("bytes")
    plain = {"urls": pack_into(folder, COUNTS), "sampling": "shuffled", "remainder": "pad"}

    def make(num_workers=0, context="fork", *, split=None, module=None, **pool):
        settings = {
            "fields": {"image": "png", "label": "cls"},
            "decode": {"image": "gray"},
            "transforms": {"image": jitter, "label": jitter_label},
            "batch_size": 2,
            "seed": 7,
        }
        pool |= {"multiprocessing_context": context, "cache_dir": str(folder / "cache")}
        data = ShardDataModule(
            plain | {"shuffle_run": 2, "shuffle_block": 8} | (split or {}),
            num_workers=num_workers,
            loader=LoaderConfig(**pool),
            **settings | (module or {}),
        )
        return data.loader("train", rank=1, world_size=2)

    return make


def as_bytes(value):
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.numpy().tobytes()
    return list(map(as_bytes, value)) if isinstance(value, list) else value


def take(loader, num_batches):
    """The next batches, over the ends of epochs, as bytes with what is needed to read them."""
    epochs = chain.from_iterable(iter(loader) for _ in range(EPOCHS + 1))
    with loader:
        return [
            [(name, as_bytes(column)) for name, column in batch.items()]
            for batch in islice(epochs, num_batches)
        ]


# --- each worker makes what the trainer would -----------------------------------------------------


@pytest.mark.parametrize(
    ("context", "num_workers", "sampling"),
    [("fork", 8, "shuffled"), ("forkserver", 3, "shuffled"), ("spawn", 1, "resampled")],
)
def test_processes_give_the_bytes_of_the_trainers_thread(
    make_loader, context, num_workers, sampling
):
    """Also what transforms draw from the global generators."""
    module = {"transforms": {"image": jitter, "label": jitter_globally}}
    make = partial(make_loader, split={"sampling": sampling}, module=module)
    expected = take(make(), EPOCHS * STEPS_OF_EPOCH)
    assert len(set(map(repr, expected))) == EPOCHS * STEPS_OF_EPOCH
    assert take(make(num_workers, context), EPOCHS * STEPS_OF_EPOCH) == expected


# --- whatever batches are made of -----------------------------------------------------------------


def crop_rows(sample, rng):
    """Two fields by one draw, of another size for each sample."""
    top = int(rng.integers(4))
    image = sample["image"].repeat(1, 2, 1)[:, top : top + 4]
    return sample | {"image": image, "mask": image[0, 0] + top, "length": top}


def joint_transforms(_folder):
    return {}, {"sample_transforms": [crop_rows]}


def crop_rows_ragged(sample, rng):
    """As many rows as are drawn, and boxes, of which there may be none."""
    rows = int(rng.integers(1, 4))
    boxes = np.full((int(rng.integers(3)), 4), rng.random(), np.float32)
    return sample | {"image": sample["image"][:, :rows, : 5 - rows], "boxes": boxes}


def pad_collate(_folder):
    padded = PadCollate(["image", "boxes"], to_multiple=2)
    return {}, {"collate_fn": padded, "sample_transforms": [crop_rows_ragged]}


def a_filter(_folder):
    return {"exclude": {"hash_of": "key", "of": 3, "parts": [0]}}, {}


def mixture(folder, own, **settings):
    """Three components, in batches that cut rounds, of weights that change."""
    mix = mix_of(folder / "shards", ("web", "more", "labels"), **own)
    schedule = [{"epoch": 1, "weights": {"web": 1, "labels": 2}}]
    mixed = {"urls": None, "remainder": None, "mix": mix, "round": 8, "schedule": schedule}
    return mixed | settings, {"batch_size": 5}


def a_mixture_of_equal_fields(folder):
    """Each component has a join of its own, with rows of about half of its samples."""
    own = {"labels": {"transforms": {"label": jitter_label, "image": jitter_twice}}}
    split, module = mixture(folder, own, dataset_size=64)
    for name, part in split["mix"].items():
        keys = [f"{name}{number:03d}" for number in range(0, sum(MIX_COUNTS[name]), 2)]
        table = pa.table({"__key__": keys, "text": [key.upper() for key in keys]})
        parquet.write_table(table, folder / f"{name}.parquet")
        part["join"] = {"text": str(folder / f"{name}.parquet")}
    return split, module


def a_mixture_of_other_fields(folder):
    own = {
        "fields": {"text": "class.txt", "image": "img.png"},
        "decode": {"text": "text", "image": "gray"},
        "transforms": {"image": jitter},
    }
    return mixture(folder, {"labels": own}, dataset_size=80, unit=5)


KINDS = [
    joint_transforms,
    pad_collate,
    a_filter,
    a_mixture_of_equal_fields,
    a_mixture_of_other_fields,
]


@pytest.mark.parametrize("settings_of", KINDS)
def test_the_bytes_are_the_same_from_processes_threads_and_after_resumes(
    make_loader, settings_of, tmp_path
):
    split, module = settings_of(tmp_path)
    make = partial(make_loader, split=split, module=module)
    steps = len(make())
    expected = take(make(), EPOCHS * steps)
    assert len(set(map(repr, expected))) == EPOCHS * steps
    for context, num_workers in CONTEXTS:
        assert take(make(num_workers, context), EPOCHS * steps) == expected, context
    for pool in THREADS:
        assert take(make(2, **pool), EPOCHS * steps) == expected, pool
    state = make().state_dict()
    for stop in range(steps + 1):  # of most loaders no worker makes a batch: to start takes longest
        loader = make(2 * (stop == 3))
        loader.load_state_dict(state)
        assert take(loader, 2) == expected[stop : stop + 2], stop
        loader.load_state_dict(state)
        take(loader, 1)
        state = loader.state_dict()
