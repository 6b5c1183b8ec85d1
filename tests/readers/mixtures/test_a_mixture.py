"""What mixtures guarantee, in the names of its tests: batches hold what the order says."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

from lightning_shards.errors import MissingFieldError, SampleError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers import indexed
from lightning_shards.readers.indexed import IndexedSource
from tests.mixed_shards import COUNTS, mix_of, module_of, pack_component

ALIKE = ("web", "labels")
DIFFERENT = ("web", "labels", "more")


def refused(*arguments):
    raise AssertionError("a batch is made sample by sample")


@pytest.fixture(params=["by fields", "by samples"])
def way(request, monkeypatch):
    """Each way to a batch, and that no other is taken in silence."""
    if request.param == "by samples":
        monkeypatch.setattr(indexed, "can_decode", lambda _: False)
    else:
        monkeypatch.setattr(indexed.WorkerBatches, "_batch_by_samples", refused)


def mixture(tmp_path, names=DIFFERENT, split=None, components=None, **settings):
    mix = mix_of(tmp_path / "shards", names, **(components or {}))
    return module_of(tmp_path, mix, split, **settings)


def negative(sample):
    return sample | {"label": -sample["label"]}


def as_numbers(batch):
    """Number of the component and of the sample in it, by the keys of a batch."""
    names = list(COUNTS)
    return [(names.index(key[:-3]), int(key[-3:])) for key in batch["__key__"]]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "names", [ALIKE, DIFFERENT, ("more", "web"), ("labels", "web")], ids=",".join
)
def test_each_row_is_the_sample_that_the_order_names_with_all_of_its_fields(tmp_path, names):
    module = mixture(tmp_path, names)
    source = module.source("train")
    assert isinstance(source, IndexedSource)
    firsts = np.cumsum([0, *(len(COUNTS[name]) for name in names)])
    for epoch in range(2):
        loader = module.loader("train")
        loader.set_epoch(epoch)
        for step, batch in enumerate(loader):
            assert list(batch) == ["__key__", "image", "label", "__id__", "__component__"]
            ids = source.order.at(epoch, 8 * step, 8 * step + 8)
            assert batch["__id__"].tolist() == ids.tolist()
            components = source.order.slots.components(epoch, 8 * step, 8 * step + 8)
            assert batch["__component__"].tolist() == components.tolist()
            assert batch["__component__"].dtype == torch.int64
            for row, (shard, sample) in enumerate(ids.tolist()):
                name = names[components[row]]
                own_shard = shard - firsts[components[row]]
                number = sum(COUNTS[name][:own_shard]) + sample
                assert batch["__key__"][row] == f"{name}{number:03d}"
                assert batch["label"][row] == number
                assert batch["image"][row].unique().tolist() == [number]
                assert batch["image"].shape == (8, 1, 4, 4)
        assert step == 3


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("names", [ALIKE, DIFFERENT], ids=",".join)
def test_tuples_have_the_fields_in_the_order_of_the_first_component(tmp_path, names):
    swapped = {"fields": {"label": "class.txt", "image": "img.png"}}
    told = mixture(tmp_path, names, components={"labels": swapped}, batch_format="tuple")
    for image, label in told.loader("train"):
        assert (image.shape, label.shape) == ((8, 1, 4, 4), (8,))
        assert image[:, 0, 0, 0].tolist() == label.tolist()


def with_components(samples):
    return {"pairs": [(sample["__component__"], sample["__key__"]) for sample in samples]}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("names", [ALIKE, DIFFERENT], ids=",".join)
def test_a_collate_fn_is_given_the_component_of_each_sample(tmp_path, names):
    loader = mixture(tmp_path, names, collate_fn=with_components).loader("train")
    for batch in loader:
        assert [names[number] for number, _ in batch["pairs"]] == [
            k[:-3] for _, k in batch["pairs"]
        ]
        assert batch["__component__"].tolist() == [number for number, _ in batch["pairs"]]


def tenfold(label, rng):
    return 10 * label + int(rng.integers(2))


@pytest.mark.usefixtures("way")
def test_each_component_has_transforms_of_its_own_with_the_randomness_of_the_position(tmp_path):
    components = {
        "web": {"transforms": {"label": tenfold}},
        "labels": {"sample_transforms": [negative]},
    }
    module = mixture(tmp_path, components=components)
    whole = [batch["label"].tolist() for batch in module.loader("train")]
    for rank in range(2):
        half = mixture(tmp_path, components=components, batch_size=4)
        own = [b["label"].tolist() for b in half.loader("train", rank=rank, world_size=2)]
        assert own == [labels[4 * rank : 4 * rank + 4] for labels in whole]
    for labels, batch in zip(whole, module.loader("train"), strict=True):
        for label, (component, number) in zip(labels, as_numbers(batch), strict=True):
            allowed = [{10 * number, 10 * number + 1}, {-number}, {number}]
            assert label in allowed[component]


def halved(label):
    return label / 2


@pytest.mark.parametrize("names", [ALIKE, DIFFERENT], ids=",".join)
def test_whole_and_other_numbers_of_components_are_joined_as_those_of_one(tmp_path, names):
    own = {"web": halved, "labels": int}
    components = {name: {"transforms": {"label": own[name]}} for name in own}
    batch = next(iter(mixture(tmp_path, names, components=components).loader("train")))
    assert batch["label"].dtype == torch.float64
    wanted = [number / 2 if component == 0 else number for component, number in as_numbers(batch)]
    assert batch["label"].tolist() == wanted


def hundredfold(data):
    return 100 * int(data)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("names", [ALIKE, DIFFERENT], ids=",".join)
def test_each_component_has_decoders_of_its_own(tmp_path, names):
    components = {"labels": {"decode": {"image": "gray", "label": hundredfold}}}
    for batch in mixture(tmp_path, names, components=components).loader("train"):
        wanted = [100 * number if own == 1 else number for own, number in as_numbers(batch)]
        assert batch["label"].tolist() == wanted


def as_text(label):
    return f"<{label}>"


def as_tensor(label):
    return torch.full((3,), float(label))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("transform", [as_text, as_tensor])
def test_lists_and_tensors_of_components_are_joined_row_by_row(tmp_path, transform):
    components = {name: {"transforms": {"label": transform}} for name in DIFFERENT}
    for batch in mixture(tmp_path, components=components).loader("train"):
        for row, (_, number) in enumerate(as_numbers(batch)):
            made, wanted = batch["label"][row], transform(number)
            assert torch.equal(made, wanted) if transform is as_tensor else made == wanted


@pytest.mark.parametrize("names", [ALIKE, DIFFERENT], ids=",".join)
def test_shapes_that_differ_inside_a_batch_are_told_with_both_components(tmp_path, names):
    mix = mix_of(tmp_path / "shards", names)
    mix["web"]["urls"] = pack_component(tmp_path / "large", "web", [9], size=8)
    source = module_of(tmp_path, mix).source("train")
    message = r"\(1, \d, \d\) uint8 in sample '\w+', but \(1, \d, \d\) uint8 in sample"
    in_training = partial(next, source.batches(Place(), Cursor()))
    for make in (in_training, partial(source.first_sample, Place())):
        with pytest.raises(SampleError, match=rf"{message}(.|\n)*'web', '{names[1]}'.*set unit to"):
            make()


@pytest.mark.usefixtures("way")
def test_whole_batches_of_one_component_may_differ_in_shapes_and_fields(tmp_path):
    mix = mix_of(tmp_path / "shards", DIFFERENT)
    mix["web"]["urls"] = pack_component(tmp_path / "large", "web", [9], size=8)
    mix["labels"]["fields"] = {"text": "class.txt"}
    mix["labels"]["decode"] = {"text": "text"}
    module = module_of(tmp_path, mix, {"unit": 4, "dataset_size": 96}, batch_size=4)
    seen = Counter()
    module.source("train").first_sample(Place())
    for batch in module.loader("train"):
        [component] = set(batch["__component__"].tolist())
        seen[component] += 1
        if component == 1:
            assert batch["text"] == [str(number) for _, number in as_numbers(batch)]
            assert "image" not in batch
        else:
            assert batch["image"].shape[2:] == ((8, 8), None, (4, 4))[component]
    assert [seen[number] for number in range(3)] == [15, 6, 3]


def test_one_sample_of_each_component_is_looked_at_before_a_fit(tmp_path):
    wrong = {"labels": {"fields": {"image": "img.png", "label": "class.json"}, "decode": {}}}
    source = mixture(tmp_path, components=wrong).source("train")
    with pytest.raises(MissingFieldError, match=r"class\.json") as raised:
        source.first_sample(Place())
    assert "this is component 'labels' of the mixture" in raised.value.__notes__
