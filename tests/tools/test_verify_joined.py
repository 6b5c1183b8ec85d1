"""`verify --repair` makes no sample of members of two: tars of two sets whose keys overlap."""

import pytest

from lightning_shards.dataprep.listing import list_tars
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tar.plain_runs import count_samples
from lightning_shards.tools import index, verify
from tests.tools.conftest import samples_of, write_members

FIRST = [("0.bin", b"A0"), ("0.cls", b"A"), ("1.bin", b"A1"), ("1.cls", b"A")]
SECOND = [("0.bin", b"B0"), ("0.txt", b"B"), ("2.bin", b"B2"), ("2.txt", b"B")]


@pytest.fixture
def run(run_here):
    return run_here(verify.main)


@pytest.fixture
def repair(run, tmp_path):
    """Writes a tar and repairs it; gives what was saved, and what is reported as lost."""

    def call(members, damage=None):
        path = write_members(tmp_path / "data" / "a.tar", members)
        if damage is not None:
            data = bytearray(path.read_bytes())
            damage(data)
            path.write_bytes(data)
        return repaired(run, path, tmp_path / "out")

    return call


def repaired(run, path, target):
    status, document = run(path, "--repair", target, "--decode", "none")
    assert status == 1
    [found] = document["repairs"].values()
    saved = samples_of(found["path"]) if found["path"] else {}
    assert found["saved"] == len(saved)
    if saved:
        assert count_samples(found["path"]) == len(saved)
        assert run(target / "*.tar", "--decode", "none")[0] == 0
    return saved, found["lost"]


def spoil(*names):
    """What damages the headers of the last members of these names."""

    def damage(data):
        for name in names:
            data[data.rindex(name.encode()) + 1] ^= 1

    return damage


def test_of_two_sets_with_a_key_in_common_no_field_of_the_second_goes_to_the_first(repair):
    saved, lost = repair([*FIRST, *SECOND])
    assert saved == {
        "0": {"bin": b"A0", "cls": b"A"},
        "1": {"bin": b"A1", "cls": b"A"},
        "2": {"bin": b"B2", "txt": b"B"},
    }
    assert lost.keys() == {"0 (again)"}
    assert lost["0 (again)"].startswith("has a second bin, at byte ")


def test_a_field_that_comes_again_at_once_begins_another_sample(repair):
    saved, lost = repair([*FIRST[:2], *SECOND[:2], ("9.bin", b"9")])
    assert saved == {"0": {"bin": b"A0", "cls": b"A"}, "9": {"bin": b"9"}}
    assert lost.keys() == {"0 (again)"}


def test_what_follows_two_samples_of_a_key_belongs_to_neither(repair):
    members = [("0.bin", b"A"), ("1.bin", b"A"), ("0.bin", b"B"), ("1.bin", b"B"), ("0.cls", b"B")]
    saved, lost = repair(members)
    assert saved == {"0": {"bin": b"A"}, "1": {"bin": b"A"}}
    assert lost.keys() == {"0 (again)", "1 (again)", "0 (again, 2)"}


def test_every_lost_sample_of_a_key_is_counted(repair):
    saved, lost = repair([("0 (again).bin", b"x"), *FIRST, *SECOND, *SECOND])
    assert saved.keys() == {"0 (again)", "0", "1", "2"}
    assert lost.keys() == {"0 (again, 2)", "0 (again, 3)", "2 (again)"}


@pytest.mark.parametrize(
    ("members", "spoilt"),
    [
        ([*FIRST, *SECOND], ["0.bin"]),  # the field that tells the second 0 from the first
        ([("0.cls", b"A"), ("0.bin", b"A"), *FIRST[2:], *SECOND], ["0.cls"]),
        ([*FIRST[2:], *FIRST[:2], *SECOND], ["0.bin"]),  # side by side, the damage between them
        ([*FIRST[2:], *FIRST[:2], *SECOND], ["0.cls", "0.bin"]),
    ],
)
def test_members_on_both_sides_of_damage_make_no_sample_that_was_not_there(repair, members, spoilt):
    whole = {
        "0": [{"bin": b"A0", "cls": b"A"}, {"bin": b"A", "cls": b"A"}, {"bin": b"B0", "txt": b"B"}],
        "1": [{"bin": b"A1", "cls": b"A"}],
        "2": [{"bin": b"B2", "txt": b"B"}],
    }
    saved, _ = repair(members, spoil(*spoilt))
    assert saved
    assert all(fields in whole[key] for key, fields in saved.items())


def change(path, content):
    """Change the first byte of a member with this content."""
    data = bytearray(path.read_bytes())
    data[data.index(content)] ^= 1
    path.write_bytes(data)


@pytest.fixture
def indexed(run_here, tmp_path):
    """Writes a tar and indexes it with checksums."""

    def call(members):
        path = write_members(tmp_path / "data" / "a.tar", members)
        run_here(index.main)(path, "--checksums")  # which may refuse to write an index
        (tmp_path / "data" / "wids.json").unlink(missing_ok=True)
        return path

    return call


def test_the_samples_of_a_table_are_kept_apart_in_the_same_way(indexed, run, tmp_path):
    path = indexed([*FIRST, *SECOND])
    change(path, b"A1")
    saved, lost = repaired(run, path, tmp_path / "out")
    assert saved == {"0": {"bin": b"A0", "cls": b"A"}, "2": {"bin": b"B2", "txt": b"B"}}
    assert lost.keys() == {"1", "0 (again)"}
    assert "is not what it was" in lost["1"]


def test_a_changed_member_of_the_second_of_a_key_does_not_cost_the_first(indexed, run, tmp_path):
    path = indexed([*FIRST, *SECOND])
    change(path, b"B0")
    saved, lost = repaired(run, path, tmp_path / "out")
    assert saved.keys() == {"0", "1", "2"}
    assert lost.keys() == {"0 (again)"}


def test_what_was_added_since_the_index_is_told_as_lost(indexed, run, tmp_path):
    path = indexed(FIRST)
    write_members(path, [*FIRST, ("3.bin", b"new"), ("3.cls", b"new")])
    data = bytearray(path.read_bytes())
    spoil("1.cls")(data)
    path.write_bytes(data)
    saved, lost = repaired(run, path, tmp_path / "out")
    assert saved.keys() == {"0", "1"}
    assert lost == {"3": "was not there when the shard was indexed"}


def test_a_sample_that_readers_leave_out_is_told_as_lost(repair):
    members = [*FIRST[:2], ("1.bin", b"1"), ("1.__bad__", b"yes"), ("0.txt", b"apart")]
    saved, lost = repair(members)
    assert saved == {"0": {"bin": b"A0", "cls": b"A", "txt": b"apart"}}
    assert lost == {"1": "is left out by its member __bad__"}


def test_the_member_before_a_field_that_comes_again_is_named(run, tmp_path):
    path = write_members(tmp_path / "data" / "a.tar", [*FIRST[:2], *SECOND])
    status, document = run(path)
    [found] = document["findings"]
    assert (status, found["rule"], found["sample"]) == (1, "damaged shard", "0.cls")


def test_verify_and_reshard_join_and_keep_apart_the_same_runs(run, tmp_path):
    members = [("0.bin", b"A"), ("1.bin", b"A"), ("0.bin", b"B"), ("1.cls", b"A"), ("0.cls", b"B")]
    path = write_members(tmp_path / "data" / "a.tar", members)
    status, document = run(path)
    rules = {each["rule"]: each["sample"] for each in document["findings"] if each["is_failure"]}
    assert (status, rules) == (1, {"duplicate key": "0", "split sample": "1"})
    counts = {each["rule"]: each["count"] for each in document["findings"] if each["is_failure"]}
    assert counts == {"duplicate key": 2, "split sample": 1}  # the last 0.cls may be of either
    listed = list_tars([str(path)], cache=CacheFolder(tmp_path / "cache"))
    assert (len(listed.samples), listed.joined) == (4, 1)  # three samples of 0, for `reshard`
    assert repaired(run, path, tmp_path / "out")[0]["0"] == {"bin": b"A"}


def test_a_field_of_any_run_before_makes_a_duplicate(run, tmp_path):
    names = ["0.bin", "1.bin", "0.cls", "2.bin", "0.cls"]
    path = write_members(tmp_path / "data" / "a.tar", [(name, b"A") for name in names])
    rules = {each["rule"]: each["count"] for each in run(path)[1]["findings"] if each["is_failure"]}
    assert rules == {"split sample": 1, "duplicate key": 1}
