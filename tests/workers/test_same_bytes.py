"""Batches are equal byte for byte from real processes, however many, and after any stop.

tests/readers/test_indexed.py compares the shares of workers without processes, and two workers
under each start method.
"""

import io
from itertools import chain, islice

import numpy as np
import pytest
import torch
from PIL import Image
from webdataset.writer import TarWriter

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ddp,
    pytest.mark.timeout(600),  # eight processes on a loaded core
    # torch's word to machines with fewer cores than workers
]

COUNTS = [5, 0, 9, 3, 12, 1]  # 30 samples
EPOCHS = 2
STEPS = 8 * EPOCHS


def jitter(image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return image + torch.from_numpy(rng.random(tuple(image.shape)))


def jitter_globally(label: int) -> torch.Tensor:
    return label + torch.rand(3) + float(np.random.random())  # noqa: NPY002


def crop_alike(sample, rng):
    """Two fields by one draw, of another size for each sample, and a field of its own."""
    top = int(rng.integers(4))
    image = sample["image"].repeat(1, 2, 1)[:, top : top + 4]
    return sample | {"image": image, "mask": image[0, 0] + top, "length": top}


def crop_rows(sample, rng):
    """The same, without the label, which then travels by columns."""
    return crop_alike(sample, rng)


crop_rows.takes_fields = ("image",)


def drawn_globally(sample):
    return sample | {"drawn": float(np.random.random())}  # noqa: NPY002


JOINT = {"joint": [crop_rows], "joint, globally": [crop_alike, drawn_globally]}


def jitter_label(label: int, rng: np.random.Generator) -> torch.Tensor:
    return label + torch.from_numpy(rng.random(3))


def side_by_side(samples):
    """A batch of its own shape: the images in one row, and a list of small tensors."""
    return {
        "row": torch.cat([sample["image"] for sample in samples], dim=-1),
        "labels": torch.cat([sample["label"] for sample in samples]),
        "weights": [sample["__weight__"] for sample in samples],
    }


@pytest.fixture(scope="module")
def make_loader(tmp_path_factory, pack_into):
    """Makes loaders of rank 1 of 2, over the same shards; 0 workers are the trainer's thread."""
    folder = tmp_path_factory.mktemp("bytes")
    urls = pack_into(folder, COUNTS)

    def make(
        num_workers=0,
        context="fork",
        sampling="shuffled",
        label=jitter_globally,
        joint=None,
        collate_fn=None,
        **pool,
    ):
        module = ShardDataModule(
            train=SplitConfig(
                urls,
                sampling=sampling,
                reader="indexed",
                remainder="pad",
                shuffle_run=2,
                shuffle_block=8,
            ),
            fields={"image": "png", "label": "cls"},
            decode={"image": "gray"},
            transforms={"image": jitter, "label": label},
            sample_transforms=joint,
            collate_fn=collate_fn,
            batch_size=2,
            num_workers=num_workers,
            seed=7,
            loader=LoaderConfig(
                multiprocessing_context=context, cache_dir=str(folder / "cache"), **pool
            ),
        )
        return module.loader("train", rank=1, world_size=2)

    return make


def take(loader, num_batches):
    """The next batches, over the ends of epochs, as bytes with what is needed to read them."""
    epochs = chain.from_iterable(iter(loader) for _ in range(EPOCHS + 1))
    try:
        return [as_bytes(batch) for batch in islice(epochs, num_batches)]
    finally:
        loader.close()


def as_bytes(batch):
    return [
        (name, str(value.dtype), tuple(value.shape), value.numpy().tobytes())
        if isinstance(value, torch.Tensor)
        else (name, value)
        for name, value in batch.items()
    ]


@pytest.fixture(scope="module")
def expected(make_loader):
    """Two epochs by sampling, made in the trainer's own thread."""
    return {
        sampling: take(make_loader(sampling=sampling), STEPS)
        for sampling in ("shuffled", "resampled")
    }


def test_two_epochs_differ_in_their_bytes(expected):
    for batches in expected.values():
        assert len({repr(batch) for batch in batches}) == STEPS


@pytest.mark.parametrize(
    ("context", "num_workers", "sampling"),
    [
        ("fork", 1, "shuffled"),
        ("fork", 2, "shuffled"),
        ("fork", 3, "shuffled"),
        ("fork", 3, "resampled"),
        ("fork", 8, "shuffled"),
        ("fork", 8, "resampled"),
        ("forkserver", 3, "shuffled"),
    ],
)
def test_processes_give_the_bytes_of_the_trainers_thread(
    make_loader, expected, context, num_workers, sampling
):
    assert take(make_loader(num_workers, context, sampling), STEPS) == expected[sampling]


THREADS = {
    "1 thread": (1, {"pool": "threads"}),
    "3 threads": (3, {"pool": "threads"}),
    "8 threads": (8, {"pool": "threads"}),
    "2 threads in each of 2 processes": (2, {"threads_per_worker": 2}),
}


@pytest.mark.parametrize(("num_workers", "pool"), THREADS.values(), ids=THREADS)
def test_threads_give_the_bytes_of_the_trainers_thread(make_loader, num_workers, pool):
    expected = take(make_loader(label=jitter_label), STEPS)
    assert take(make_loader(num_workers, label=jitter_label, **pool), STEPS) == expected


@pytest.mark.parametrize(
    ("num_workers", "pool"),
    [(3, {}), (2, {"context": "forkserver"}), (3, {"pool": "threads"})],
    ids=["fork", "forkserver", "threads"],
)
def test_a_collate_fn_gives_the_bytes_of_the_trainers_thread(make_loader, num_workers, pool):
    own = {"label": jitter_label, "collate_fn": side_by_side}
    expected = take(make_loader(**own), STEPS)
    assert [name for name, *_ in expected[0]][:2] == ["__key__", "row"]
    assert take(make_loader(num_workers, **own, **pool), STEPS) == expected
    state = make_loader().state_dict() | {"samples": 12}
    loader = make_loader(num_workers, **own, **pool)
    loader.load_state_dict(state)
    assert take(loader, 3) == expected[3:6]


def test_processes_resumed_at_any_step_by_other_processes_give_the_same_bytes(
    make_loader, expected
):
    """One worker more or less for each resume, from the first step to the one after the epoch."""
    state = make_loader().state_dict()
    for stop in range(STEPS // EPOCHS + 1):
        loader = make_loader(num_workers=1 + stop % 3)
        loader.load_state_dict(state)
        assert take(loader, 3) == expected["shuffled"][stop : stop + 3], stop
        loader.load_state_dict(state)
        take(loader, 1)
        state = loader.state_dict()


@pytest.mark.parametrize("joint", JOINT.values(), ids=JOINT)
def test_joint_transforms_give_the_same_bytes_from_processes_threads_and_after_resumes(
    make_loader, joint
):
    label = jitter_label if joint == [crop_rows] else jitter_globally
    expected = take(make_loader(label=label, joint=joint), STEPS)
    assert len({repr(batch) for batch in expected}) == STEPS
    for context, num_workers in (("fork", 2), ("fork", 3), ("forkserver", 2), ("spawn", 1)):
        made = take(make_loader(num_workers, context, label=label, joint=joint), STEPS)
        assert made == expected, context
    if label is jitter_label:
        pools = ({"pool": "threads"}, {"threads_per_worker": 2})
        for pool in pools:
            assert take(make_loader(2, label=label, joint=joint, **pool), STEPS) == expected
    state = make_loader(label=label, joint=joint).state_dict()
    for stop in range(STEPS // EPOCHS + 1):
        loader = make_loader(stop % 3, label=label, joint=joint)
        loader.load_state_dict(state)
        assert take(loader, 2) == expected[stop : stop + 2], stop
        loader.load_state_dict(state)
        take(loader, 1)
        state = loader.state_dict()


LACKING = {0, 3, 4, 11, 20, 28, 29}


def png(value):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def lacking_urls(tmp_path_factory):
    """Shards in which some samples have a text alone."""
    folder, number, urls = tmp_path_factory.mktemp("lacking"), 0, []
    for shard, count in enumerate(COUNTS):
        urls.append(str(folder / f"{shard}.tar"))
        with TarWriter(urls[-1]) as writer:
            for _ in range(count):
                more = {} if number in LACKING else {"png": png(number), "cls": str(number)}
                writer.write({"__key__": f"{number:02d}", "txt": str(number), **more})
                number += 1
    return urls


def with_row_bytes(batch):
    """A batch in which tensors that stand in lists can be compared, too."""
    return [
        (name, [as_bytes({"row": row}) for row in value] if isinstance(value, list) else value)
        for name, value in batch.items()
        if isinstance(value, list)
    ] + as_bytes({name: value for name, value in batch.items() if torch.is_tensor(value)})


@pytest.mark.parametrize("defaults", [{}, {"label": -1}], ids=["none", "default"])
def test_optional_members_give_the_same_bytes(lacking_urls, tmp_path, defaults):
    def make(num_workers=0, context="fork", **pool):
        split = SplitConfig(
            lacking_urls, sampling="shuffled", remainder="pad", shuffle_run=2, shuffle_block=8
        )
        module = ShardDataModule(
            train=split,
            fields={"image": "png?", "label": "cls?", "text": "txt"},
            defaults=defaults,
            decode={"image": "gray"},
            transforms={"image": jitter},
            batch_size=2,
            num_workers=num_workers,
            loader=LoaderConfig(
                multiprocessing_context=context, cache_dir=str(tmp_path / "cache"), **pool
            ),
        )
        return module.loader("train", rank=1, world_size=2)

    def taken(loader, count=STEPS):
        epochs = chain.from_iterable(iter(loader) for _ in range(EPOCHS + 1))
        try:
            return [with_row_bytes(batch) for batch in islice(epochs, count)]
        finally:
            loader.close()

    expected = taken(make())
    assert len({repr(batch) for batch in expected}) == STEPS
    for context, num_workers in (("fork", 3), ("forkserver", 2), ("spawn", 1)):
        assert taken(make(num_workers, context)) == expected, context
    for pool in ({"pool": "threads"}, {"threads_per_worker": 2}):
        assert taken(make(2, **pool)) == expected, pool
    state = make().state_dict()
    for stop in range(STEPS // EPOCHS + 1):
        loader = make(stop % 2)
        loader.load_state_dict(state)
        assert taken(loader, 2) == expected[stop : stop + 2], stop
        loader.load_state_dict(state)
        taken(loader, 1)
        state = loader.state_dict()
