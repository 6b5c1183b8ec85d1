"""Zeros at the end of a shard that may be members which were never written are told."""

import pytest

from lightning_shards.tools import index, info, verify
from tests.tools.conftest import write_members

MEMBERS = [(f"{number:04d}.bin", b"x" * 900) for number in range(400)]  # 600 KB


def rules(document):
    found = document.get("findings") or []
    return {(each["rule"], each["is_failure"]) for each in found}


@pytest.fixture
def shard(tmp_path):
    return write_members(tmp_path / "data" / "a.tar", MEMBERS)


@pytest.mark.parametrize("tool", [verify, info, index])
@pytest.mark.parametrize(
    ("half_written", "added", "told"),
    [
        (False, 0, set()),
        (False, 10_240, {("long end", False)}),
        (True, 0, {("unwritten end", True)}),
        (False, 17 << 20, {("unwritten end", True)}),
    ],
)
def test_zeros_behind_the_end_are_told(run_here, shard, tool, half_written, added, told):
    data = shard.read_bytes()
    if half_written:
        half = data.index(b"0200.bin")
        data = data[:half] + bytes(len(data) - half)
    shard.write_bytes(data + bytes(added))
    status, document = run_here(tool.main)(shard)
    assert rules(document) == told
    assert bool(status) == any(is_failure for _, is_failure in told)


def test_a_file_of_zeros_alone_is_no_empty_shard(run_here, shard):
    shard.write_bytes(bytes(5 << 20))
    status, document = run_here(verify.main)(shard)
    assert (status, ("unwritten end", True) in rules(document)) == (1, True)
