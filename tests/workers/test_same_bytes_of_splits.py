"""What a split leaves out, mixes or joins gives the same bytes from all pools and resumes."""

import io
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from webdataset.writer import TarWriter

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from tests.mixed_shards import COUNTS as MIX_COUNTS
from tests.mixed_shards import mix_of, module_of
from tests.workers.same_bytes import (
    COUNTS,
    STEPS,
    WORKERS_OF_STOPS,
    as_bytes,
    jitter,
    jitter_label,
    require_same_after_stops,
    require_same_from_pools,
    take,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ddp,
    pytest.mark.timeout(600),  # eight processes on a loaded core
]


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


def test_optional_members_give_the_same_bytes(lacking_urls, tmp_path):
    def make(num_workers=0, context="fork", **pool):
        split = SplitConfig(
            lacking_urls, sampling="shuffled", remainder="pad", shuffle_run=2, shuffle_block=8
        )
        module = ShardDataModule(
            train=split,
            fields={"image": "png?", "label": "cls?", "text": "txt"},
            defaults={"label": -1},
            decode={"image": "gray"},
            transforms={"image": jitter},
            batch_size=2,
            num_workers=num_workers,
            loader=LoaderConfig(
                multiprocessing_context=context, cache_dir=str(tmp_path / "cache"), **pool
            ),
        )
        return module.loader("train", rank=1, world_size=2)

    taken = partial(take, as_bytes=with_row_bytes)
    expected = taken(make(), STEPS)
    assert len({repr(batch) for batch in expected}) == STEPS
    require_same_from_pools(make, expected, taken=taken)
    require_same_after_stops(make, expected, WORKERS_OF_STOPS, taken=taken)


def jitter_twice(image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return jitter(jitter(image, rng), rng)


OWN = {"labels": {"transforms": {"label": jitter_label, "image": jitter_twice}}}
TEXT = {
    "labels": {
        "fields": {"text": "class.txt", "image": "img.png"},
        "decode": {"text": "text", "image": "gray"},
        "transforms": {"image": jitter},
    }
}
MIXES = {
    "joined": (("web", "more", "labels"), OWN, {"dataset_size": 64}),
    "apart": (("web", "more", "labels"), TEXT, {"dataset_size": 80, "unit": 5}),
}
MIX_STEPS = 2 * 6


def join_of(folder, name):
    """Rows of about half of the samples of a component of a mix."""
    keys = [f"{name}{number:03d}" for number in range(0, sum(MIX_COUNTS[name]), 2)]
    table = pa.table({"__key__": keys, "text": [key.upper() for key in keys]})
    parquet.write_table(table, folder / f"{name}.parquet")
    return {"text": str(folder / f"{name}.parquet")}


@pytest.mark.parametrize("mixed", MIXES)
def test_mixtures_give_the_same_bytes_from_any_workers_and_after_any_resume(tmp_path, mixed):
    """Components with fields, transforms and joins of their own, in batches that cut rounds."""
    names, own, split = MIXES[mixed]
    if mixed == "joined":
        own = {name: {**own.get(name, {}), "join": join_of(tmp_path, name)} for name in names}
    mix = mix_of(tmp_path / "shards", names, **own)

    def make(num_workers=0, context="fork", batch_size=5, rank=1, **pool):
        module = module_of(
            tmp_path,
            mix,
            {"schedule": [{"epoch": 1, "weights": {"web": 1, names[-1]: 2}}], **split},
            batch_size=batch_size,
            num_workers=num_workers,
            transforms={"image": jitter, "label": jitter_label},
            loader=LoaderConfig(
                multiprocessing_context=context, cache_dir=str(tmp_path / "cache"), **pool
            ),
        )
        return module.loader("train", rank=rank, world_size=2)

    expected = take(make(), MIX_STEPS)
    assert len({repr(batch) for batch in expected}) == MIX_STEPS
    require_same_from_pools(make, expected)
    require_same_after_stops(make, expected, [0] * (MIX_STEPS // 2 + 1))


THIRD = {"hash_of": "key", "of": 3, "parts": [0]}


def test_what_a_filter_leaves_gives_the_same_bytes(make_loader):
    make = partial(make_loader, label=jitter_label, split={"exclude": THIRD})
    expected = take(make(), 6)
    assert len({repr(batch) for batch in expected}) == 6
    require_same_from_pools(make, expected)
    require_same_after_stops(make, expected, [0, 1, 0, 1])


def jitter_vector(vector, rng):
    return vector + rng.random(2).astype(np.float32)


def table_of(folder):
    """Rows of most of the samples that `pack` makes, and of some that there are not."""
    keys = np.random.default_rng(0).permutation([*set(range(30)) - LACKING, 55, 66]).tolist()
    columns = {
        "__key__": [f"{key:06d}" for key in keys],
        "caption": [f"number {key}" for key in keys],
        "vector": pa.array([[key, 0.5] for key in keys], pa.list_(pa.float32(), 2)),
        "score": [key / 7 for key in keys],
    }
    parquet.write_table(pa.table(columns), folder / "table.parquet", row_group_size=5)
    return str(folder / "table.parquet")


def test_joined_columns_give_the_same_bytes(pack_into, tmp_path):
    urls, table = pack_into(tmp_path / "shards", COUNTS), table_of(tmp_path)

    def make(num_workers=0, context="fork", **pool):
        split = SplitConfig(
            urls,
            sampling="shuffled",
            remainder="pad",
            shuffle_run=2,
            shuffle_block=8,
            join={
                name: {"table": table, "column": name} for name in ("caption", "vector", "score")
            },
        )
        module = ShardDataModule(
            train=split,
            fields={"label": "cls"},
            defaults={"vector": np.zeros(2, np.float32), "score": -1.0},
            transforms={"vector": jitter_vector},
            batch_size=2,
            num_workers=num_workers,
            loader=LoaderConfig(
                multiprocessing_context=context, cache_dir=str(tmp_path / "cache"), **pool
            ),
        )
        return module.loader("train", rank=1, world_size=2)

    expected = take(make(), STEPS)
    assert len({repr(batch) for batch in expected}) == STEPS
    captions = [value for batch in expected for name, value, *_ in batch if name == "caption"]
    assert any(None in column for column in captions)
    require_same_from_pools(make, expected)
    require_same_after_stops(make, expected, WORKERS_OF_STOPS)
