"""Components that differ, fail or end: in one batch, before a fit, and in a checkpoint."""

import http.server
import pickle
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_shards import DecodeCenterCrop
from lightning_shards.errors import ConfigError, SampleError, StateError
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.mixtures.schedule import WeightChange
from lightning_shards.plan.place import Place
from lightning_shards.plan.schedule import EpochSchedule
from lightning_shards.readers.mixtures.choice import reader_of_mixture
from lightning_shards.readers.mixtures.stream import MixtureStreamSource
from lightning_shards.readers.reader_choice import ReaderChoice
from lightning_shards.samples.collate_fn import Collation
from lightning_shards.samples.fields import make_fields
from lightning_shards.saved_state import require_resumable
from lightning_shards.shards.index import ShardIndex
from tests.readers.mixtures.conftest import COUNTS, rows_in_turn, rows_of

ALONE, START = Place(), Cursor()
PAIR = {"web": 3, "labels": 1}
IMAGE = {"fields": {"image": "png"}}


def batches(source, number, place=ALONE, cursor=START):
    with closing(source.batches(place, cursor)) as made:
        return list(islice(made, number))


# --- components that differ -----------------------------------------------------------------------


def widened(image):
    return image.repeat(1, 1, 2)


def as_float(label):
    return torch.tensor(float(label))


def test_shapes_that_differ_inside_a_batch_name_both_components(make_mixture):
    source = make_mixture(
        PAIR, {"labels": {"transforms": {"image": widened}}}, batch_size=8, **IMAGE
    )
    for make in (partial(batches, source, 1), partial(source.first_sample, ALONE)):
        with pytest.raises(SampleError) as caught:
            make()
        for part in ("'image'", "'web'", "'labels'", "(3, 4, 4) uint8", "(3, 4, 8) uint8", "unit"):
            assert part in str(caught.value)


def test_tensors_and_numbers_of_one_field_are_refused(make_mixture):
    """They would be a list in some batches, and a tensor in those of one component."""
    source = make_mixture(PAIR, {"labels": {"transforms": {"label": as_float}}}, batch_size=8)
    with pytest.raises(SampleError, match=r"a number in .*'web', but \(\) float32 in .*'labels'"):
        batches(source, 1)


@pytest.mark.parametrize("cropped", [("web",), ("labels",), ("web", "labels")])
@pytest.mark.parametrize("channels_last", [True, False])
def test_crops_and_plain_images_of_two_components_are_stacked(make_mixture, cropped, channels_last):
    source = make_mixture(PAIR, batch_size=8, decode={"image": "rgb"}, **IMAGE)
    crop = {"image": DecodeCenterCrop(size=4, resize=4, channels_last=channels_last)}
    fields = make_fields(IMAGE["fields"], {}, frozenset(), crop)
    components = (
        replace(each, fields=fields, transforms=crop) if name in cropped else each
        for name, each in zip(PAIR, source.components, strict=True)
    )
    (loaded,) = batches(replace(source, components=tuple(components)), 1)
    image = torch.as_tensor(loaded.batch["image"])
    assert (image.shape, image.dtype) == ((8, 3, 4, 4), torch.uint8)
    assert image[:, 0, 0, 0].tolist() == list(map(int, loaded.batch["__key__"]))
    is_of_pixels = image.is_contiguous(memory_format=torch.channels_last)
    assert is_of_pixels == (channels_last and len(cropped) == 2)


@pytest.mark.parametrize("unit", [4, 8])
def test_a_unit_of_whole_batches_keeps_shapes_and_fields_apart(make_mixture, unit):
    own = {
        "web": {"fields": {"image": "png", "label": "cls"}},
        "labels": {"fields": {"image": "png", "more": "cls"}, "transforms": {"image": widened}},
    }
    source = make_mixture(PAIR, own, unit=unit, rounds=2, batch_size=4)
    assert source.first_sample(ALONE).batch["image"].shape == (1, 3, 4, 8)
    for loaded in batches(source, 2 * unit, Place(0, 1)):
        (component,) = set(loaded.batch["__component__"].tolist())
        assert loaded.batch["image"].shape == ((4, 3, 4, 4), (4, 3, 4, 8))[component]
        assert ("label", "more")[component] in loaded.batch


def test_names_of_fields_that_differ_inside_a_batch_name_both_components(make_mixture):
    own = {"labels": {"fields": {"other": "cls"}}}
    source = make_mixture(PAIR, own, batch_size=8)
    for make in (partial(batches, source, 1), partial(source.first_sample, ALONE)):
        with pytest.raises(
            ConfigError, match=r"'web' has \['label'\] and 'labels' has \['other'\]"
        ):
            make()


def test_sample_transforms_may_give_fields_the_same_names(make_mixture):
    own = {"labels": {"fields": {"other": "cls"}, "sample_transforms": (renamed,)}}
    (loaded,) = batches(make_mixture(PAIR, own, batch_size=8), 1)
    assert loaded.batch["label"].shape == (8,)


def renamed(sample):
    return {"label": sample.pop("other")}


@pytest.mark.parametrize("batch_format", ["dict", "tuple"])
def test_fields_have_the_order_of_the_first_component_in_all_batches(make_mixture, batch_format):
    own = {
        "web": {"fields": {"a": "cls", "b": "png"}},
        "labels": {"fields": {"b": "png", "a": "cls"}},
    }
    shared = {"unit": 2, "rounds": 2, "batch_size": 2, "batch_format": batch_format}
    for loaded in batches(make_mixture(PAIR, own, **shared), 8):
        if batch_format == "tuple":
            assert [column.ndim for column in loaded.batch] == [1, 4]
        else:
            assert [name for name in loaded.batch if name in "ab"] == ["a", "b"]


def with_components(samples):
    return {"seen": [sample["__component__"] for sample in samples]}


def test_a_collate_fn_is_given_the_component_of_each_sample(make_mixture):
    collation = Collation(with_components)
    source = make_mixture(PAIR, batch_size=8, collation=collation)
    assert source.first_sample(ALONE).batch["seen"] in ([0], [1])
    (loaded,) = batches(source, 1)
    assert loaded.batch["seen"] == loaded.batch["__component__"].tolist()
    assert np.bincount(loaded.batch["seen"]).tolist() == [6, 2]


def test_batch_keys_may_leave_the_component_out(make_mixture):
    source = make_mixture(PAIR, batch_size=8, collation=Collation(reserved=("__id__",)))
    assert list(batches(source, 1)[0].batch) == ["label", "__id__"]


def test_a_single_stream_has_no_component(make_source, shards_of):
    """Not even if a stage gives it one."""
    source = make_source(shards_of["web"], stages=(with_a_component,))
    assert "__component__" not in batches(source, 1)[0].batch


def with_a_component(samples):
    return (sample | {"__component__": 3} for sample in samples)


# --- bad samples ----------------------------------------------------------------------------------


def not_three(label):
    if label == 3:
        raise RuntimeError("cannot bear 3")
    return label


def test_a_substitute_is_of_the_component_of_the_bad_sample(make_mixture):
    transforms = {"label": not_three}
    source = make_mixture(
        PAIR, {"web": {"transforms": transforms}}, batch_size=8, rounds=40, max_bad=99
    )
    made = batches(source, 20)
    bad = [each for loaded in made for each in loaded.bad]
    assert {each[:2] for each in bad} == {(0, 3), (2, 6)}  # samples 3 and 13 of web
    weights = [loaded.batch["__weight__"] for loaded in made]
    assert sum(weight.size - weight.sum() for weight in weights) == len(bad)
    for loaded in made:
        assert np.bincount(loaded.batch["__component__"]).tolist() == [6, 2]
        assert all((shard < 3) == (number == 0) for number, shard, _ in rows_of(loaded.batch))
        standing = loaded.batch["__component__"][loaded.batch["__weight__"] == 0]
        assert not standing.any()


def test_bad_samples_of_all_components_are_numbered_by_all_shards(make_mixture):
    source = make_mixture(
        PAIR, transforms={"label": not_three}, batch_size=8, rounds=40, max_bad=99
    )
    found = {each[:2] for loaded in batches(source, 20) for each in loaded.bad}
    assert found == {(0, 3), (2, 6), (4, 1)}


def test_a_component_of_bad_samples_only_ends_the_run(make_mixture):
    own = {"labels": {"transforms": {"label": float.fromhex}}}
    source = make_mixture(PAIR, own, batch_size=8, rounds=40, max_bad=5)
    with pytest.raises(SampleError, match="more than max_bad=5"):
        batches(source, 20)


def test_a_stage_that_ends_a_stream_names_its_component(make_mixture):
    source = make_mixture(PAIR, {"labels": {"stages": (first_three,)}}, batch_size=8, rounds=40)
    with pytest.raises(SampleError, match=r"component 'labels' gave 1 of 2 samples.*stages"):
        batches(source, 20)


def first_three(samples):
    return islice(samples, 3)


# --- opening and closing --------------------------------------------------------------------------


def open_shards():
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sorted(str(link.readlink()) for link in links if ".tar" in str(link.readlink()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files by /proc")
def test_closing_closes_what_all_pipelines_have_open(make_mixture):
    before = open_shards()
    source = make_mixture({"web": 1, "labels": 1, "code": 1}, batch_size=3, rounds=40)
    made = source.batches(ALONE, START)
    next(made)
    assert len(open_shards()) >= len(before) + 2
    made.close()
    assert open_shards() == before


class Ending:
    """A stage that notes the beginnings and the ends of its streams."""

    deterministic = True

    def __init__(self, name, noted):
        self.name, self.noted = name, noted

    def __call__(self, samples):
        self.noted.append(f"{self.name} begins")
        try:
            yield from samples
        finally:
            self.noted.append(f"{self.name} ends")


def test_a_pipeline_begins_with_its_first_row_and_ends_with_its_epoch_or_an_error(make_mixture):
    noted = []
    changes = [WeightChange({"labels": 1}, samples=4)]
    own = {name: {"stages": (Ending(name, noted),)} for name in PAIR}
    source = make_mixture({"web": 1, "labels": 0}, own, changes=changes, batch_size=2, rounds=8)
    made = source.batches(ALONE, START)
    list(islice(made, 2))
    assert noted == ["web begins"]
    list(islice(made, 2))
    assert noted == ["web begins", "labels begins"]
    next(made)
    assert sorted(noted[2:]) == ["labels begins", "labels ends", "web ends"]
    made.close()
    assert noted[-1] == "labels ends"
    noted.clear()
    failing = {"web": own["web"], "labels": {"transforms": {"label": float.fromhex}}}
    source = make_mixture({"web": 1, "labels": 1}, failing, batch_size=4, rounds=8)
    with pytest.raises(SampleError):
        batches(source, 1)
    assert noted == ["web begins", "web ends"]


@pytest.mark.network
def test_remote_components_are_those_of_local_ones_and_leave_no_thread(make_mixture, shards_of):
    folder = Path(shards_of["web"][0]).parents[1]
    handler = partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            local = make_mixture(PAIR, batch_size=8, rounds=40)
            root = f"http://127.0.0.1:{server.server_address[1]}"
            remote = with_indexes(local, lambda url: f"{root}/{Path(url).relative_to(folder)}")
            threads = {each for each in threading.enumerate() if "fetch" in each.name}
            rows = [rows_of(loaded.batch) for loaded in batches(remote, 9)]
            assert rows == [rows_of(loaded.batch) for loaded in batches(local, 9)]
            left = {each for each in threading.enumerate() if "fetch" in each.name} - threads
            for each in left:
                each.join(10)
                assert not each.is_alive()
        finally:
            server.shutdown()
            thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def with_indexes(source, change):
    components = (
        replace(each, index=ShardIndex(tuple(map(change, each.index.urls)), each.index.counts))
        for each in source.components
    )
    return replace(source, components=tuple(components))


# --- what it says of itself -----------------------------------------------------------------------


def test_it_names_callables_by_their_components(make_mixture):
    own = {"web": {"transforms": {"label": not_three}}, "labels": {"stages": (first_three,)}}
    told = make_mixture(PAIR, own, collation=Collation(with_components)).describe()
    assert dict(told.callables) == {
        "the transform of 'label' of component 'web'": not_three,
        "stages[0] of component 'labels'": first_three,
        "collate_fn": with_components,
    }
    assert told.index.num_shards == len(COUNTS["web"]) + len(COUNTS["labels"])
    assert told.index.samples == sum(COUNTS["web"] + COUNTS["labels"])
    assert (told.sampling, told.reader, told.is_streamed) == ("mixture", "stream", True)


def test_a_first_sample_is_made_of_each_component(make_mixture):
    seen = []
    own = {name: {"transforms": {"label": Noting(name, seen)}} for name in PAIR}
    make_mixture(PAIR, own).first_sample(Place(1, 2))
    assert set(seen) == set(PAIR)


class Noting:
    def __init__(self, name, seen):
        self.name, self.seen = name, seen

    def __call__(self, value):
        self.seen.append(self.name)
        return value


def test_a_pickle_holds_nothing_that_can_be_computed(make_mixture):
    source = make_mixture(PAIR, rounds=40)
    fresh = pickle.dumps(source)
    rows_in_turn(source)
    source.describe()
    assert len(pickle.dumps(source)) == len(fresh)


# --- checkpoints ----------------------------------------------------------------------------------


def require(source, saved, trained):
    """Check that a run may go on with this source behind so many samples of its first epoch."""
    state = saved.identity() | {"epoch": 0, "samples": trained}
    require_resumable(source.identity(), state, source.describe())


def test_stages_after_the_cursor_may_change_and_those_before_may_not(make_mixture):
    saved = make_mixture(PAIR, changes=[WeightChange({"web": 1}, samples=8)])
    other = make_mixture(PAIR, changes=[WeightChange({"labels": 1}, samples=8)])
    require(other, saved, 8)
    with pytest.raises(StateError, match="from sample 12 of the run on"):
        require(other, saved, 9)


def test_a_component_of_other_shards_is_refused_by_its_name(make_mixture):
    source = make_mixture(PAIR)
    other = with_indexes(source, lambda url: url.replace("labels-", "names-"))
    with pytest.raises(StateError, match="component 'labels' of sampling=resampled shards="):
        require(other, source, 4)
    require(other, source, 0)
    require(with_indexes(source, lambda url: f"/elsewhere/{Path(url).name}"), source, 4)


def test_a_mixture_that_was_read_by_offsets_is_refused(make_mixture):
    source = make_mixture(PAIR)
    state = source.identity() | {"epoch": 0, "samples": 4, "reader": "indexed"}
    with pytest.raises(StateError, match="made with reader='indexed', this run has 'stream'"):
        require_resumable(source.identity(), state, source.describe())


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["shuffled", "sequential"])
def test_exact_sampling_of_a_component_is_refused(make_mixture, sampling):
    with pytest.raises(ConfigError, match=rf"'labels' has sampling='{sampling}'.*reader='indexed'"):
        make_mixture(PAIR, {"labels": {"sampling": sampling}})


def test_components_of_two_splits_or_other_slots_are_refused(make_mixture):
    with pytest.raises(ConfigError, match=r"max_bad must be the same .* 'labels', 4"):
        make_mixture(PAIR, {"labels": {"max_bad": 4}})
    source = make_mixture(PAIR)
    with pytest.raises(ConfigError, match="one source for each of its components, web, labels"):
        MixtureStreamSource(source.components[:1], source.slots)
    with pytest.raises(ConfigError, match="must have the 16 samples of the mixture's, got 17"):
        source.with_epochs(EpochSchedule(17, 2, "drop"))
    with pytest.raises(ConfigError, match=r"'tuple' .*'web' has the fields \['label'\], 'labels'"):
        make_mixture(PAIR, {"labels": {"fields": {"x": "cls"}}}, batch_format="tuple")


def test_a_replay_of_stages_is_refused(make_mixture):
    source = make_mixture(PAIR, {"labels": {"stages": (first_three,)}})
    with pytest.raises(ConfigError, match="the 1 `stages`"):
        source.replay(ALONE, 0, range(1), 1)


# --- which reader ---------------------------------------------------------------------------------


LOCAL = ShardIndex(("a.tar",), np.array([3]))
REMOTE = ShardIndex(("https://h/b.tar",), np.array([3]))
TABLES = replace(REMOTE, has_tables=True)


def chosen(reader="auto", sampling="resampled", **indexes):
    choices = {
        name: ReaderChoice(
            *(f"train.mix.{name}", reader, sampling, "staged" in name), in_mixture=True
        )
        for name in indexes
    }
    return reader_of_mixture(choices, indexes)


def test_a_mixture_is_indexed_where_all_components_can_be():
    assert chosen(a=LOCAL, b=TABLES) == "indexed"
    assert chosen(sampling="shuffled", a=LOCAL, b=TABLES) == "indexed"
    assert chosen(a=LOCAL, b=REMOTE) == "stream"
    assert chosen(a=LOCAL, staged=LOCAL) == "stream"
    assert chosen("stream", a=LOCAL, b=TABLES) == "stream"


def test_an_indexed_reader_that_cannot_be_names_the_component():
    with pytest.raises(ConfigError, match=r"stages of 'train\.mix\.staged' are for reader='str"):
        chosen("indexed", a=LOCAL, staged=LOCAL)
    uncounted = ShardIndex(("https://h/b.tar",), None)
    with pytest.raises(ConfigError, match=r"reader='indexed' of 'train\.mix\.b' needs the number"):
        chosen("indexed", a=LOCAL, b=uncounted)


@pytest.mark.parametrize(
    ("indexes", "why"),
    [
        ({"a": LOCAL, "b": REMOTE}, r"train\.mix\.b is remote, without member tables"),
        ({"a": LOCAL, "staged": LOCAL}, r"train\.mix\.staged has stages"),
    ],
)
def test_a_mixture_that_is_streamed_cannot_serve_each_sample_once(indexes, why):
    with pytest.raises(ConfigError, match=rf"train\.mix\.a has sampling='shuffled'.*{why}"):
        chosen(sampling="shuffled", **indexes)
    with pytest.raises(ConfigError, match=r"because of reader='stream'"):
        chosen("stream", "shuffled", a=LOCAL)
