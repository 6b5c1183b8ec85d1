"""Names that the package uses for itself mean nothing when shards, fields or stages write them."""

import tarfile
from io import BytesIO

import pytest

from lightning_shards.dataprep.tar_writer import check_field
from lightning_shards.errors import ConfigError, DamagedShardError, SampleError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.stream_stages import read_shard
from lightning_shards.samples.fields import make_fields
from lightning_shards.shards.members import scan_members
from lightning_shards.shards.tar.plain_runs import count_samples

NAMES = ["__key__", "__url__", "__id__", "__weight__", "__local_path__", "__substitute__"]
NAMES.append("__component__")
SUFFIXES = [*NAMES, "__Weight__"]


def pack(path, suffix, samples=4):
    with tarfile.open(path, "w") as tar:
        for number in range(samples):
            for name in ("cls", suffix):
                info = tarfile.TarInfo(f"{number}.{name}")
                info.size = 1
                tar.addfile(info, BytesIO(b"1"))
    return str(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_member_of_a_reserved_name_is_damage(tmp_path, suffix):
    url = pack(tmp_path / "0.tar", suffix)
    for read in (count_samples, scan_members, lambda url: list(read_shard(url, None))):
        with pytest.raises(DamagedShardError, match=f"{suffix.lower()} is reserved"):
            read(url)


@pytest.mark.parametrize("suffix", ["__weight__.jpg", "__meta__", "__substitute"])
def test_other_names_with_underscores_are_members_like_any(tmp_path, make_source, suffix):
    url = pack(tmp_path / "0.tar", suffix)
    made = next(make_source([url], max_bad=1).batches(Place(), Cursor()))
    assert made.batch["__weight__"].tolist() == [1, 1]
    assert list(made.batch) == ["__key__", "label", "__id__", "__weight__"]


@pytest.mark.parametrize("name", NAMES)
def test_a_field_of_a_reserved_name_is_refused(name):
    for fields in ({"x": f"jpg;{name}"}, {name: "jpg"}):
        with pytest.raises(ConfigError):
            make_fields(fields, {}, frozenset())


@pytest.mark.parametrize("name", NAMES)
def test_a_field_of_a_reserved_name_is_not_packed(name):
    with pytest.raises(SampleError, match="cannot be a field"):
        check_field(name)


def marking(samples):
    for sample in samples:
        yield sample | {"__substitute__": True, "__weight__": 0.0, "__local_path__": b"x"}


def losing_ids(samples):
    for sample in samples:
        yield sample | {"__id__": b"none"}


def test_what_a_stage_puts_beside_the_fields_changes_no_weight(tmp_path, make_source):
    url = pack(tmp_path / "0.tar", "txt")
    source = make_source([url], max_bad=1, stages=(marking,))
    made = next(source.batches(Place(), Cursor()))
    assert made.batch["__weight__"].tolist() == [1, 1]
    assert list(made.batch) == ["__key__", "label", "__id__", "__weight__"]


def test_a_stage_that_spoils_the_ids_is_named_so(tmp_path, make_source):
    url = pack(tmp_path / "0.tar", "txt")
    with pytest.raises(SampleError, match=r"'__id__'.*stage"):
        next(make_source([url], stages=(losing_ids,)).batches(Place(), Cursor()))
