"""Bad samples are replaced, weigh nothing and are counted; ranks, batches and budgets hold."""

import io
import os
import re
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate, chain, islice
from json import dumps
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from webdataset.writer import TarWriter

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import (
    ConfigError,
    DamagedShardError,
    IndexMismatchError,
    MissingFieldError,
    SampleError,
    ShardNotFoundError,
)
from lightning_shards.pipeline.indexed import IndexedSource
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.digest import add_digests, digest_ids
from lightning_shards.shards.members import scan_members
from lightning_shards.shards.tables import TableStore, write_table
from lightning_shards.topology import Place

COUNTS = (5, 0, 9, 3, 12, 1)
NUM_SAMPLES = sum(COUNTS)
IDS = [(shard, number) for shard, count in enumerate(COUNTS) for number in range(count)]
BAD = {
    0: "image",  # the first sample
    3: "field",
    4: "image",  # two in a row, up to a shard's end
    14: "image",
    15: "crc32",
    16: "field",  # all of a shard
    20: "transform",
    29: "transform",  # the last sample
}
"""What is wrong with which sample of the data set."""
REASONS = {
    "image": "SampleError",
    "field": "MissingFieldError",
    "transform": "SampleError",
    "crc32": "DamagedShardError",
}
STREAM_BAD = {number: "image" if kind == "crc32" else kind for number, kind in BAD.items()}
"""A stream has no crc32 to hold a member against."""


@dataclass(frozen=True)
class Picky:
    """A transform that cannot bear some labels; a label is the sample's number in the data set."""

    refused: frozenset[int]

    def __call__(self, label: int) -> int:
        if label in self.refused:
            raise RuntimeError(f"cannot bear {label}")
        return label


def jitter(image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return image + torch.from_numpy(rng.random(tuple(image.shape)))


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((2, 2), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_shards(folder: Path, kinds: dict[int, str], counts=COUNTS) -> list[str]:
    """Shards whose sample number i has the label i, spoilt as `kinds` says."""
    folder.mkdir(parents=True)
    urls = [str(folder / f"shard-{shard}.tar") for shard in range(len(counts))]
    number = 0
    for url, count in zip(urls, counts, strict=True):
        with TarWriter(url) as writer:
            for _ in range(count):
                kind = kinds.get(number)
                image = b"no image" if kind == "image" else png(number)
                sample = {"__key__": f"{number:04d}", "png": image}
                writer.write(sample if kind == "field" else sample | {"cls": str(number)})
                number += 1
    return urls


def flip_byte(url: str, cache: Path, number: int) -> None:
    """Change a label on the disk, behind the back of a table that has its crc32."""
    path, table = Path(url), scan_members(url, with_crc32=True)
    write_table(TableStore(cache).sidecar_of(url), table)
    data, stamp = bytearray(path.read_bytes()), path.stat()
    offset, _, _ = table.find(number, "cls")
    data[offset] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


@dataclass(frozen=True)
class Data:
    urls: list[str]
    cache: Path
    bad: dict[int, str]

    def module(self, *, batch_size=2, num_workers=0, clean=False, **split):
        refused = frozenset(n for n, kind in self.bad.items() if kind == "transform" and not clean)
        chosen = {"sampling": "shuffled", "shuffle_run": 2, "shuffle_block": 8} | split
        if not clean:
            max_bad = max(len(self.bad), 1)
            chosen = {"on_bad_sample": "substitute", "max_bad": max_bad} | chosen
        return ShardDataModule(
            train=SplitConfig(self.urls, **chosen),
            fields={"image": "png", "label": "cls"},
            decode={"image": "gray"},
            transforms={"image": jitter, "label": Picky(refused)},
            batch_size=batch_size,
            num_workers=num_workers,
            seed=7,
            loader=LoaderConfig(cache_dir=str(self.cache)),
        )

    @property
    def bad_ids(self):
        return {IDS[number]: REASONS[kind] for number, kind in self.bad.items()}


@pytest.fixture(scope="session")
def indexed_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    urls = write_shards(folder / "shards", BAD)
    flip_byte(urls[3], folder / "cache", 1)
    return Data(urls, folder / "cache", BAD)


@pytest.fixture(scope="session")
def clean_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    return Data(write_shards(folder / "shards", {}), folder / "cache", {})


@pytest.fixture(scope="session")
def stream_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    return Data(write_shards(folder / "shards", STREAM_BAD), folder / "cache", STREAM_BAD)


@pytest.fixture
def make_data(tmp_path):
    """Writes shards with their own counts and faults: `make_data({2: "image"}, counts=(4, 4))`."""

    def make(bad, counts=COUNTS):
        return Data(write_shards(tmp_path / "shards", bad, counts), tmp_path / "cache", bad)

    return make


def rows_of(batch):
    ids, weights = batch["__id__"].tolist(), batch["__weight__"].tolist()
    return [(tuple(each), weight) for each, weight in zip(ids, weights, strict=True)]


def as_bytes(batch):
    parts = [batch[name].numpy().tobytes() for name in ("image", "label", "__id__", "__weight__")]
    return [*parts, ",".join(batch["__key__"])]


def made_by_workers(module, place, num_workers, num_batches):
    """What a pool of so many workers gives, from one process."""
    source = module.loader("train", rank=place.rank, world_size=place.world_size).source
    places = [place.with_worker(worker, num_workers) for worker in range(num_workers)]
    shares = [source.batches(each, Cursor()) for each in places]
    return [next(shares[step % num_workers]) for step in range(num_batches)]


def epoch_of(module, world_size, num_workers=1):
    """All ranks' batches of one epoch: `made[rank][step]`, and the plan."""
    plan = module.loader("train", world_size=world_size).epochs.plan(world_size)
    ranks = [
        made_by_workers(module, Place(rank, world_size), num_workers, plan.steps)
        for rank in range(world_size)
    ]
    return ranks, plan


def require_lockstep(ranks, plan):
    for rank, made in enumerate(ranks):
        assert [len(each.batch["label"]) for each in made] == [
            plan.size(step, rank) for step in range(plan.steps)
        ]


def counted(bad):
    """Without the messages: Pillow puts addresses into them."""
    return [each[:3] for each in bad]


def all_rows(ranks):
    return [row for made in ranks for each in made for row in rows_of(each.batch)]


def all_bad(ranks):
    return [bad for made in ranks for each in made for bad in each.bad]


SAMPLINGS = ["shuffled", "sequential", "resampled"]
REMAINDERS = ["drop", "pad", "balanced"]


# --- the indexed reader ---------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_next_good_sample_of_the_order_stands_for_a_bad_one(
    indexed_data, sampling, remainder, world_size
):
    module = indexed_data.module(
        sampling=sampling, remainder=remainder, reader="indexed", max_bad=40, batch_size=4
    )
    ranks, plan = epoch_of(module, world_size)
    require_lockstep(ranks, plan)
    order = module.loader("train").source.order()
    for rank, made in enumerate(ranks):
        for step, each in enumerate(made):
            start, stop = plan.rank_span(step, rank)
            positions = [tuple(i) for i in order.at(0, start, stop + NUM_SAMPLES).tolist()]
            expected, bad = [], []
            for number, position in enumerate(range(start, stop)):
                is_repeat = position >= NUM_SAMPLES and sampling != "resampled"
                is_repeat = is_repeat or number >= stop - start - plan.num_repeats(step, rank)
                good = next(i for i in positions[number:] if i not in indexed_data.bad_ids)
                is_good = good == positions[number] and positions[number] is good
                expected.append((good, float(is_good and not is_repeat)))
                if positions[number] in indexed_data.bad_ids and not is_repeat:
                    bad.append((*positions[number], indexed_data.bad_ids[positions[number]]))
            assert rows_of(each.batch) == expected
            assert each.batch["__weight__"].dtype == torch.float32
            assert [each[:3] for each in each.bad] == bad


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_good_samples_are_what_they_would_be_without_bad_ones(indexed_data, clean_data, sampling):
    settings = {"sampling": sampling, "reader": "indexed", "remainder": "pad", "max_bad": 40}
    found = made_by_workers(indexed_data.module(**settings), Place(), 1, 15)
    wanted = made_by_workers(clean_data.module(clean=False, **settings), Place(), 1, 15)
    compared = 0
    for mine, other in zip(found, wanted, strict=True):
        for row, weight in enumerate(mine.batch["__weight__"].tolist()):
            if weight:
                compared += 1
                assert mine.batch["__key__"][row] == other.batch["__key__"][row]
                for name in ("image", "label", "__id__"):
                    assert torch.equal(mine.batch[name][row], other.batch[name][row])
    assert compared > NUM_SAMPLES // 2


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_substitute_is_whole_and_drawn_for_its_own_place(indexed_data, clean_data, sampling):
    """Key, id, label and pixels are of one sample; its noise is that of the position."""
    settings = {"sampling": sampling, "reader": "indexed", "max_bad": 40}
    found = made_by_workers(indexed_data.module(**settings), Place(), 1, 15)
    wanted = made_by_workers(clean_data.module(**settings), Place(), 1, 15)
    num_substitutes = 0
    for mine, other in zip(found, wanted, strict=True):
        for row, weight in enumerate(mine.batch["__weight__"].tolist()):
            number = IDS.index(tuple(mine.batch["__id__"][row].tolist()))
            num_substitutes += not weight
            assert mine.batch["__key__"][row] == f"{number:04d}"
            assert mine.batch["label"][row] == number
            planned = other.batch["label"][row]
            noise = mine.batch["image"][row] - number
            assert torch.allclose(noise, other.batch["image"][row] - planned)
    assert num_substitutes >= 3


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_batches_are_equal_byte_for_byte_under_any_number_of_workers(
    indexed_data, sampling, remainder
):
    module = indexed_data.module(
        sampling=sampling, remainder=remainder, reader="indexed", max_bad=40
    )
    place, num_batches = Place(1, 3), 13  # over the ends of epochs
    first = made_by_workers(module, place, 1, num_batches)
    for num_workers in (2, 3):
        other = made_by_workers(module, place, num_workers, num_batches)
        for mine, theirs in zip(first, other, strict=True):
            assert as_bytes(mine.batch) == as_bytes(theirs.batch)
            assert counted(mine.bad) == counted(theirs.bad)
            assert mine.digest == theirs.digest
    assert any(made.bad for made in first)


@pytest.mark.slow
def test_worker_processes_give_the_same_batches_and_tell_of_bad_samples(indexed_data):
    loaders = [
        indexed_data.module(num_workers=num_workers).loader("train") for num_workers in (0, 2)
    ]
    batches = [list(map(as_bytes, loader)) for loader in loaders]
    assert batches[0] == batches[1]
    assert loaders[0].served.digest == loaders[1].served.digest
    assert counted(loaders[0].served.bad) == counted(loaders[1].served.bad)
    assert {each[:2]: each.reason for each in loaders[1].served.bad} == indexed_data.bad_ids
    assert all(each.message for each in loaders[1].served.bad)
    loaders[1].close()


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_stop_at_any_step_resumes_byte_for_byte(indexed_data, sampling):
    module = indexed_data.module(
        sampling=sampling, reader="indexed", remainder="pad", batch_size=4, max_bad=40
    )

    def two_epochs(loader):
        return chain.from_iterable(iter(loader) for _ in range(2))

    whole = [as_bytes(batch) for batch in two_epochs(module.loader("train", world_size=2))]
    steps = len(module.loader("train", world_size=2))
    for stop in range(1, len(whole)):
        first = module.loader("train", world_size=2)
        taken = 0
        while taken < stop:
            taken += len(list(islice(first, stop - taken)))
        resumed = module.loader("train", world_size=2)
        resumed.load_state_dict(first.state_dict())
        rest = list(islice(map(as_bytes, two_epochs(resumed)), 2 * steps - stop))
        assert rest == whole[stop:], stop


def test_steps_are_equal_as_sets_under_any_world_size(indexed_data):
    steps_of = []
    for world_size in (1, 2, 3):
        ranks, _ = epoch_of(
            indexed_data.module(batch_size=6 // world_size, remainder="pad"), world_size
        )
        steps_of.append([sorted(all_rows([step])) for step in zip(*ranks, strict=True)])
    assert steps_of[0] == steps_of[1] == steps_of[2]


def test_a_bad_sample_is_an_error_where_none_is_replaced(indexed_data):
    module = indexed_data.module(on_bad_sample="raise", max_bad=0, sampling="sequential")
    with pytest.raises(SampleError, match=r"'0000' of .*shard-0\.tar.*cannot be decoded as 'gray'"):
        list(module.loader("train"))


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("image", SampleError, "cannot be decoded as 'gray'"),
        ("field", MissingFieldError, "no member for field 'label'"),
        ("transform", SampleError, "cannot bear 1"),
        ("crc32", DamagedShardError, r"'0001\.cls', sample 1\) is damaged: its crc32"),
    ],
)
def test_each_kind_is_named_as_an_error_and_counted_as_a_loss(make_data, kind, error, message):
    data = make_data({1: kind}, counts=(3,))
    if kind == "crc32":
        flip_byte(data.urls[0], data.cache, 1)
    plain = data.module(sampling="sequential", batch_size=3, on_bad_sample="raise", max_bad=0)
    with pytest.raises(error, match=message) as caught:
        list(plain.loader("train"))
    assert type(caught.value) is error
    loader = data.module(sampling="sequential", batch_size=3).loader("train")
    (batch,) = loader
    assert rows_of(batch) == [((0, 0), 1.0), ((0, 2), 0.0), ((0, 2), 1.0)]
    ((shard, sample, reason, told),) = loader.served.bad
    assert (shard, sample, reason) == (0, 1, error.__name__)
    assert told[:60] == str(caught.value)[:60]
    assert re.search(message, told)


def test_when_nothing_good_follows_the_bad_sample_is_the_error(make_data):
    data = make_data(dict.fromkeys(range(1, 6), "image"), counts=(8,))
    loader = data.module(sampling="sequential", max_bad=4).loader("train")
    with pytest.raises(SampleError, match=r"5 bad samples on this rank"):
        list(loader)
    loader = data.module(sampling="sequential", max_bad=3).loader("train")
    with pytest.raises(SampleError, match=r"'0001' of .* cannot be decoded") as caught:
        list(loader)
    assert caught.value.__notes__ == ["the 4 samples that follow it in the order are bad, too"]


def test_a_shard_that_changed_or_is_gone_is_no_bad_sample(make_data):
    data = make_data({}, counts=(2, 4))
    module = data.module(sampling="sequential", max_bad=100)
    loader = module.loader("train")
    Path(data.urls[1]).rename(data.urls[1] + ".away")
    with pytest.raises(ShardNotFoundError, match=r"shard-1\.tar does not exist"):
        list(loader)
    write_shards(Path(data.urls[0]).parent / "other", {}, counts=(5,))
    Path(data.urls[0]).with_name("other").joinpath("shard-0.tar").rename(data.urls[1])
    with pytest.raises(IndexMismatchError, match="it holds 5 samples, 4 by the index"):
        list(loader)


def test_a_substitute_is_not_looked_for_beyond_a_shard_that_changed(make_data):
    """Others would find it elsewhere as soon as the shard is put back."""
    data = make_data({3: "image"}, counts=(4, 4, 4))
    module = data.module(sampling="sequential", max_bad=100, batch_size=4)
    loader = module.loader("train", rank=0, world_size=3)
    Path(data.urls[1]).write_bytes(b"no tar" * 1000)
    with pytest.raises(DamagedShardError, match=r"shard-1\.tar has a damaged header"):
        list(loader)


def test_a_shard_that_is_damaged_as_a_whole_is_no_bad_sample(make_data, monkeypatch):
    data = make_data({}, counts=(1, 4))
    loader = data.module(sampling="sequential", max_bad=100).loader("train")
    # of many shards some are closed and opened again, without the advice that opened them first
    monkeypatch.setattr(IndexedSource, "_advise", lambda *_: None)
    Path(data.urls[0]).write_bytes(b"no tar" * 1000)
    with pytest.raises(DamagedShardError, match=r"shard-0\.tar has a damaged header"):
        list(loader)


# --- weights, digests, metrics --------------------------------------------------------------------


READERS = ["indexed", "stream"]


def data_of(request, reader):
    return request.getfixturevalue("indexed_data" if reader == "indexed" else "stream_data")


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("reader", READERS)
def test_a_weighted_metric_is_that_of_the_good_samples(request, reader, remainder, world_size):
    data = data_of(request, reader)
    module = data.module(reader=reader, sampling="sequential", remainder=remainder, batch_size=5)
    total = weight = 0.0
    for rank in range(world_size):
        for batch in module.loader("train", rank=rank, world_size=world_size):
            total += float((batch["label"] * batch["__weight__"]).sum())
            weight += float(batch["__weight__"].sum())
    good = [number for number in range(NUM_SAMPLES) if number not in data.bad]
    assert (weight, total / weight) == (len(good), pytest.approx(np.mean(good)))


@pytest.mark.parametrize("remainder", ["pad", "balanced"])
@pytest.mark.parametrize("reader", READERS)
def test_the_digests_of_served_and_bad_samples_are_that_of_the_order(request, reader, remainder):
    data = data_of(request, reader)
    module = data.module(reader=reader, remainder=remainder, batch_size=7)
    digests, bad = [], []
    for rank in range(4):
        loader = module.loader("train", rank=rank, world_size=4)
        list(loader)
        digests.append(loader.served.digest)
        bad += loader.served.bad
    ids = np.array([each[:2] for each in bad], dtype=np.int64)
    assert {each[:2]: each.reason for each in bad} == data.bad_ids
    assert len(bad) == len(data.bad)
    assert add_digests(*digests, digest_ids(ids)) == digest_ids(np.array(IDS, dtype=np.int64))
    assert digest_ids(ids) != 0


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("remainder", REMAINDERS)
def test_weights_are_there_also_where_all_samples_are_good(clean_data, reader, remainder):
    module = clean_data.module(reader=reader, remainder=remainder, max_bad=1)
    for batch in module.loader("train"):
        assert batch["__weight__"].tolist() == [1.0] * len(batch["label"])


def test_a_tuple_has_no_weights_and_is_refused(clean_data):
    split = SplitConfig(clean_data.urls, on_bad_sample="substitute", max_bad=1)
    module = ShardDataModule(split, fields={"label": "cls"}, batch_format="tuple")
    with pytest.raises(ConfigError, match=r"of 'train' says by `__weight__`.*batch_format='dict'"):
        module.loader("train")


# --- the budget -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reader", READERS)
def test_a_budget_that_is_exactly_met_lasts_and_begins_anew_each_epoch(
    request, reader, num_workers
):
    data = data_of(request, reader)
    loader = data.module(reader=reader, max_bad=8, num_workers=num_workers).loader("train")
    for _ in range(3):
        assert len(list(loader)) == len(loader)
        assert len(loader.served.bad) == 8
    loader.close()


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reader", READERS)
def test_one_bad_sample_too_many_ends_the_epoch(request, reader, num_workers):
    data = data_of(request, reader)
    module = data.module(
        reader=reader, sampling="sequential", max_bad=7, num_workers=num_workers, remainder="pad"
    )
    loader = module.loader("train")
    batches, taken = iter(loader), []
    with pytest.raises(SampleError) as caught:
        taken.extend(batches)
    assert len(taken) == len(loader) - 1
    message = str(caught.value)
    assert message.startswith("8 bad samples on this rank in epoch 0 (")
    kinds = Counter(REASONS[kind] for kind in data.bad.values())
    assert all(f"{number} {reason}" in message for reason, number in kinds.items())
    assert "more than max_bad=7 of all ranks; repair the shards, or allow more" in message
    first, *others = message.splitlines()[1:]
    assert first.startswith("  shard 0, sample 0: sample '0000' of ")
    assert len(others) == 2
    assert loader.epoch == 0


def test_ranks_have_budgets_of_their_own_until_their_sum_is_taken(indexed_data):
    module = indexed_data.module(sampling="sequential", max_bad=7, batch_size=5)
    loaders = [module.loader("train", rank=rank, world_size=3) for rank in range(3)]
    assert sum(len(list(loader)) for loader in loaders) == 6
    assert sum(len(loader.served.bad) for loader in loaders) == 8


def test_a_resumed_epoch_counts_from_where_it_was_resumed(indexed_data):
    module = indexed_data.module(sampling="sequential", max_bad=7)
    first = module.loader("train")
    next(iter(first))
    assert len(first.served.bad) == 1
    resumed = module.loader("train")
    resumed.load_state_dict(first.state_dict())
    assert len(list(resumed)) == len(resumed) - 1
    assert len(resumed.served.bad) == 7


# --- before the first step ------------------------------------------------------------------------


@pytest.mark.parametrize("reader", READERS)
def test_a_wrong_transform_shows_before_the_fit(clean_data, reader):
    module = clean_data.module(reader=reader, transforms={"label": Picky(frozenset(range(99)))})
    source = module.loader("train").source
    with pytest.raises(SampleError, match="the transform of field 'label' failed on sample"):
        source.first_sample(Place())


@pytest.mark.parametrize("reader", READERS)
def test_a_bad_first_sample_does_not_keep_a_fit_from_its_start(make_data, reader):
    data = make_data({0: "image"}, counts=(12,))
    source = data.module(reader=reader, sampling="sequential").loader("train").source
    source.first_sample(Place())
    assert source.max_bad == 1
    plain = data.module(
        reader=reader, sampling="sequential", on_bad_sample="raise", max_bad=0
    ).loader("train")
    with pytest.raises(SampleError, match=r"'0000' of .* cannot be decoded"):
        plain.source.first_sample(Place())


# --- the stream reader ----------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("sampling", ["shuffled", "sequential"])
def test_a_stream_serves_each_good_sample_once_and_counts_each_bad_one(
    stream_data, sampling, remainder, world_size, num_workers
):
    """Workers have few samples each: for some of them all are bad."""
    module = stream_data.module(reader="stream", sampling=sampling, remainder=remainder)
    ranks, plan = epoch_of(module, world_size, num_workers)
    require_lockstep(ranks, plan)
    served = Counter(each for each, weight in all_rows(ranks) if weight)
    bad = Counter({each[:2]: 0 for each in all_bad(ranks)})
    bad.update(each[:2] for each in all_bad(ranks))
    assert set(served.values()) <= {1}
    assert set(bad.values()) <= {1}
    assert served.keys() | bad.keys() <= set(IDS)
    assert not served.keys() & stream_data.bad_ids.keys()
    assert len(served) + len(bad) == plan.served
    assert all(stream_data.bad_ids[each[:2]] == each.reason for each in all_bad(ranks))
    assert not {each for each, _ in all_rows(ranks)} & stream_data.bad_ids.keys()


def test_a_stream_takes_the_sample_before_or_at_its_beginning_the_next(stream_data):
    made = made_by_workers(
        stream_data.module(reader="stream", sampling="sequential"), Place(), 1, NUM_SAMPLES // 2
    )
    labels = [label for each in made for label in each.batch["label"].tolist()]
    expected = list(accumulate(range(1, 30), lambda last, n: last if n in STREAM_BAD else n))
    assert labels == [1, *expected]


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("buffer", [0, 10])
def test_a_resampled_stream_goes_on_over_bad_samples(stream_data, counted, buffer, tmp_path):
    module = stream_data.module(
        reader="stream", sampling="resampled", shuffle_buffer=buffer, max_bad=60, dataset_size=120
    )
    if not counted:
        index = module._index("train")
        module._indexes["train"] = type(index)(index.urls, None)
    loader = module.loader("train")
    rows = [row for batch in loader for row in rows_of(batch)]
    assert len(rows) == 120
    assert not {each for each, _ in rows} & stream_data.bad_ids.keys()
    found = loader.served.bad
    assert {each[:2] for each in found} <= stream_data.bad_ids.keys()
    assert len([row for row in rows if not row[1]]) == len(found) > 5


@pytest.mark.parametrize("remainder", ["pad", "balanced"])
def test_a_worker_without_any_good_sample_borrows_one(make_data, remainder):
    data = make_data({0: "image", 1: "field"}, counts=(2, 1))
    module = data.module(reader="stream", sampling="sequential", remainder=remainder, batch_size=1)
    ranks, plan = epoch_of(module, 4)  # rank 3 repeats sample 0, which is bad
    require_lockstep(ranks, plan)
    assert all_rows(ranks) == [((1, 0), 0.0), ((1, 0), 0.0), ((1, 0), 1.0), ((1, 0), 0.0)]
    assert sorted(each[:3] for each in all_bad(ranks)) == [
        (0, 0, "SampleError"),
        (0, 1, "MissingFieldError"),
    ]


@pytest.mark.parametrize("reader", READERS)
def test_repeats_of_a_bad_sample_are_not_counted_again(make_data, reader):
    data = make_data({0: "image"}, counts=(3,))
    module = data.module(reader=reader, sampling="sequential", remainder="pad", batch_size=8)
    loader = module.loader("train")
    (batch,) = loader
    assert batch["__weight__"].tolist() == [0, 1, 1, 0, 0, 0, 0, 0]
    assert [each[:2] for each in loader.served.bad] == [(0, 0)]


def test_a_stream_without_any_good_sample_says_so(make_data):
    data = make_data(dict.fromkeys(range(4), "image"), counts=(4,))
    module = data.module(reader="stream", sampling="sequential", max_bad=9)
    with pytest.raises(SampleError, match=r"not one sample .*on_bad_sample='raise'"):
        list(module.loader("train"))
    module = data.module(reader="stream", sampling="resampled", max_bad=40)
    with pytest.raises(SampleError, match="41 bad samples on this rank"):
        list(module.loader("train"))


def break_off(samples):
    for sample in samples:
        if sample["label"] == 5:
            raise SampleError("the stage's own")
        yield sample


def without_id(samples):
    for sample in samples:
        yield {name: value for name, value in sample.items() if name != "__id__"}


@pytest.mark.parametrize(
    ("stage", "message"), [(break_off, "the stage's own"), (without_id, "cannot bear 20")]
)
def test_what_a_stage_does_is_no_bad_sample(stream_data, stage, message):
    module = stream_data.module(
        reader="stream", sampling="sequential", stages=[stage], max_bad=99, batch_size=30
    )
    with pytest.raises(SampleError, match=message):
        list(module.loader("train"))


# --- damaged shards in a stream -------------------------------------------------------------------


@pytest.fixture
def cut_data(make_data):
    """Four shards of six samples; the third breaks in its fourth sample, and others count it."""
    data = make_data({}, counts=(6, 6, 6, 6))
    folder = Path(data.urls[0]).parent
    folder.joinpath("sizes.json").write_text(dumps({Path(url).name: 6 for url in data.urls}))
    path = Path(data.urls[2])
    offset, _, _ = scan_members(path).find(3, "png")  # behind its label
    path.write_bytes(path.read_bytes()[:offset])
    return data


@contextmanager
def served_over_http(folder):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(params=["local", pytest.param("remote", marks=pytest.mark.network)])
def cut_anywhere(request, cut_data):
    """The same shards as files and over http."""
    if request.param == "local":
        yield cut_data
        return
    folder = Path(cut_data.urls[0]).parent
    with served_over_http(folder) as root:
        urls = [f"{root}/{Path(url).name}" for url in cut_data.urls]
        yield Data(urls, cut_data.cache, {})


LOST = [(2, 3), (2, 4), (2, 5)]


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("sampling", ["shuffled", "sequential"])
def test_what_a_cut_shard_has_lost_is_replaced_and_counted(cut_anywhere, sampling, num_workers):
    module = cut_anywhere.module(reader="stream", sampling=sampling, max_bad=3)
    ranks, plan = epoch_of(module, 2, num_workers)
    require_lockstep(ranks, plan)
    found = sorted(each[:3] for each in all_bad(ranks))
    # webdataset gives the half of a sample that is there, which has not all fields
    assert [each[:2] for each in found] == LOST
    assert {each[2] for each in found} <= {"DamagedShardError", "MissingFieldError"}
    good = [(shard, n) for shard in range(4) for n in range(6) if (shard, n) not in LOST]
    assert sorted(each for each, weight in all_rows(ranks) if weight) == good


def test_what_a_cut_shard_has_lost_counts_against_the_budget(cut_data):
    module = cut_data.module(reader="stream", sampling="sequential", max_bad=2)
    with pytest.raises(SampleError, match=r"3 bad samples on this rank in epoch 0 .*max_bad=2"):
        list(module.loader("train"))


@pytest.mark.parametrize("counted", [True, False])
def test_resampling_gives_up_the_rest_of_a_cut_shard(cut_anywhere, counted):
    module = cut_anywhere.module(
        reader="stream", sampling="resampled", dataset_size=160, max_bad=30, shuffle_buffer=0
    )
    if not counted:
        index = module._index("train")
        module._indexes["train"] = type(index)(index.urls, None)
    loader = module.loader("train")
    rows = [row for batch in loader for row in rows_of(batch)]
    assert len(rows) == 160
    seen = Counter(each for each, _ in rows)
    assert not seen.keys() & set(LOST)
    assert {shard for shard, _ in seen} == {0, 1, 2, 3}
    damaged = [each for each in loader.served.bad if each.reason == "DamagedShardError"]
    readings = seen[2, 2]
    assert readings >= 2
    assert abs(len(damaged) - readings) <= 1  # the epoch may begin or end within it
    halves = [each for each in loader.served.bad if each not in damaged]
    assert all(each.reason == "MissingFieldError" for each in halves)
    # nothing was planned of what a damaged shard should have held: nothing takes its place
    assert sum(weight == 0 for _, weight in rows) == len(halves)


@pytest.mark.parametrize("sampling", ["sequential", "resampled"])
def test_a_shard_with_more_samples_than_counted_is_always_an_error(make_data, sampling):
    data = make_data({}, counts=(4,))
    Path(data.urls[0]).with_name("sizes.json").write_text(dumps({"shard-0.tar": 3}))
    module = data.module(reader="stream", sampling=sampling, max_bad=50, batch_size=3)
    with pytest.raises(DamagedShardError, match="gave more than 3 samples"):
        list(chain.from_iterable(iter(module.loader("train")) for _ in range(3)))


@pytest.mark.parametrize("sampling", ["sequential", "resampled"])
def test_a_shard_that_is_gone_is_always_an_error(cut_anywhere, sampling):
    module = cut_anywhere.module(reader="stream", sampling=sampling, max_bad=99, dataset_size=24)
    loader = module.loader("train")
    batches = iter(loader)
    for url in cut_anywhere.urls:
        (Path(cut_anywhere.cache).parent / "shards" / url.rpartition("/")[2]).unlink()
    with pytest.raises((ShardNotFoundError, DamagedShardError), match=r"not exist|after 0 samples"):
        list(batches)
