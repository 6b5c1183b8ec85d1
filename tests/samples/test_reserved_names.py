"""Names that the package uses for itself mean nothing when shards, fields or stages write them."""

import pytest

from lightning_shards.errors import DamagedShardError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.stream_stages import read_shard
from lightning_shards.shards.members import scan_members

NAMES = ["__key__", "__url__", "__id__", "__weight__", "__local_path__", "__substitute__"]
NAMES.append("__component__")
SUFFIXES = [*NAMES, "__Weight__"]


def members(suffix):
    return [(f"{number}.{name}", b"1") for number in range(4) for name in ("cls", suffix)]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_member_of_a_reserved_name_is_damage(tmp_path, write_tar, suffix):
    url = str(write_tar(tmp_path / "0.tar", members(suffix)))
    for read in (scan_members, lambda url: list(read_shard(url, None))):
        with pytest.raises(DamagedShardError, match=f"{suffix.lower()} is reserved"):
            read(url)


def marking(samples):
    for sample in samples:
        yield sample | {"__substitute__": True, "__weight__": 0.0, "__local_path__": b"x"}


def test_what_a_stage_puts_beside_the_fields_changes_no_weight(tmp_path, write_tar, make_source):
    url = str(write_tar(tmp_path / "0.tar", members("txt")))
    source = make_source([url], max_bad=1, stages=(marking,))
    made = next(source.batches(Place(), Cursor()))
    assert made.batch["__weight__"].tolist() == [1, 1]
    assert list(made.batch) == ["__key__", "label", "__id__", "__weight__"]
