"""Substitutes in a mixture: they are of the component whose sample is bad."""

import tarfile
from itertools import islice
from pathlib import Path

import pytest

from lightning_shards.errors import SampleError
from lightning_shards.plan.place import Cursor, Place
from tests.mixed_shards import mix_of, module_of, pack_component

ALIKE = ("web", "labels")
DIFFERENT = ("web", "labels", "more")


def spoil(url, key, suffix):
    """Give a member other bytes, in a shard that is counted as it was."""
    with tarfile.open(url) as tar:
        member = tar.getmember(f"{key}.{suffix}")
    with Path(url).open("r+b") as file:
        file.seek(member.offset_data)
        file.write(b"!" * member.size)


@pytest.mark.parametrize(
    ("names", "suffix", "spoilt"),
    [(ALIKE, "class.txt", (0, 1, 3)), (DIFFERENT, "cls", (1, 3, 4))],
    ids=["alike", "different"],
)
def test_a_substitute_is_of_the_same_component(tmp_path, names, suffix, spoilt):
    mix = mix_of(tmp_path / "shards", names)
    last = names[-1]
    for number in spoilt:
        spoil(mix[last]["urls"][0], f"{last}{number:03d}", suffix)
    split = {"on_bad_sample": "substitute", "max_bad": 20}
    module = module_of(tmp_path, mix, split)
    source, replaced = module.source("train"), 0
    for step, loaded in enumerate(islice(source.batches(Place(), Cursor()), 4)):
        batch, planned = loaded.batch, source.order.slots.components(0, 8 * step, 8 * step + 8)
        assert batch["__component__"].tolist() == planned.tolist()
        assert [key[:-3] for key in batch["__key__"]] == [names[number] for number in planned]
        wrong = [row for row, weight in enumerate(batch["__weight__"].tolist()) if not weight]
        assert {names[planned[row]] for row in wrong} <= {last}
        assert len(wrong) == len(loaded.bad)
        replaced += len(wrong)
    assert replaced > 0


def test_the_samples_that_were_tried_are_those_of_the_component(tmp_path):
    """Each of them once, though what follows in a small component begins again and again."""
    mix = mix_of(tmp_path / "shards", ("web",))
    urls = pack_component(tmp_path / "shards", "few", [3])
    for number in range(3):
        spoil(urls[0], f"few{number:03d}", "cls")
    mix["few"] = {"urls": urls, "weight": 3}
    split = {"on_bad_sample": "substitute", "max_bad": 20}
    loader = module_of(tmp_path, mix, split).loader("train")
    with pytest.raises(SampleError, match=r"few00\d' of .*cannot be decoded") as raised:
        next(iter(loader))
    assert raised.value.__notes__ == ["of 2 other samples that follow in the order none is good"]
