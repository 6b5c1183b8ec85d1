"""Optional fields of mixtures: one component may lack what another has, and all may not."""

from contextlib import closing

import pytest

from lightning_shards import LoaderConfig
from lightning_shards.plan.place import Place
from tests.mixed_shards import mix_of, module_of

FIELDS = {"image": "png", "label": "cls?", "caption": "txt?"}
READERS = {"indexed": "shuffled", "stream": "resampled"}


@pytest.fixture(params=READERS)
def make(tmp_path, request):
    """A data module whose component `unlabelled` has images alone."""

    def module(fields=FIELDS, num_workers=0, own=None, num_shards=9):
        mix = mix_of(tmp_path / "shards", ("web", "labels"), labels={"fields": {}, "decode": {}})
        parts = {"labelled": mix["web"], "unlabelled": mix["labels"]}
        images = {"image": "img.png", "label": "cls?", **(own or {})}
        parts["unlabelled"] |= {"fields": images, "decode": {"image": "gray"}}
        return module_of(
            tmp_path,
            {n: part | {"urls": part["urls"][:num_shards]} for n, part in parts.items()},
            {"sampling": READERS[request.param], "reader": request.param},
            fields=fields,
            num_workers=num_workers,
            loader=LoaderConfig(cache_dir=str(tmp_path / "cache"), multiprocessing_context="fork"),
        )

    return module


@pytest.mark.parametrize("num_workers", [0, 1])
def test_one_component_may_lack_a_field_that_another_has(make, num_workers):
    fields = {"image": "png", "label": "cls?"}
    module = make(fields, num_workers)
    module.source("train").first_sample(Place())  # what a Trainer asks for
    with closing(module.loader("train")) as loader:
        labels = [(key[:3], label) for batch in loader for key, label in pairs(batch)]
    assert {kind for kind, _ in labels} == {"web", "lab"}
    assert all((label is None) == (kind == "lab") for kind, label in labels)


def pairs(batch):
    return zip(batch["__key__"], list(batch["label"]), strict=True)


def test_a_field_that_all_components_lack_is_warned_about(make, caplog):
    make(own={"caption": "cap.txt?"}).source("train")
    assert "has a member for the optional field 'caption', only ['class.txt', 'cls'" in caplog.text
    caplog.clear()
    make(own={"caption": "class.txt?"}).source("train")
    assert "optional" not in caplog.text
