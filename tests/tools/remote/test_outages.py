"""A store that does not answer is no damage: it is told as what it is, and nothing is repaired."""

import pytest
from fault_server import Fault

from lightning_shards.tools import info, shard_options, verify
from tests.shards.remote.conftest import QUICK

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

DOWN = [Fault("status", 503)] * 10


@pytest.fixture
def urls(folder, server):
    return [f"{server.url}/data/{path.name}?sig=s3cr3t" for path in sorted(folder.glob("*.tar"))]


def spoil(server, name):
    """Change a header of the second sample of an object."""
    data = bytearray(server.objects[name])
    data[data.index(b"00001.jpg")] ^= 1
    server.objects[name] = bytes(data)


@pytest.fixture
def looks(run_here, urls, server):
    """How many files beside the shards `verify` asks for before it reads the first."""
    run_here(verify.main)(urls[0])
    names = [asked.path.partition("?")[0] for asked in server.asked]
    server.asked.clear()
    return names.index("/data/train-000000.tar")


def test_an_outage_is_told_as_what_it_is_and_never_repaired(
    run_here, urls, server, looks, tmp_path
):
    server.faults = [None] * (looks + 1) + [None, *DOWN]  # after classes.json and the first shard
    status, document = run_here(verify.main)(*urls, "--repair", tmp_path / "repaired")
    [found] = document["findings"]
    assert (status, document["samples"], document["repairs"]) == (2, 6, {})
    assert (found["rule"], found["is_failure"]) == ("unread shard", True)
    assert found["shard"] == f"{server.url}/data/train-000001.tar"
    assert "503" in found["message"]
    assert "try 10 of 10" in found["message"]
    assert "damage" not in found["message"]
    assert "s3cr3t" not in found["message"]
    assert not (tmp_path / "repaired").exists()


def test_damage_is_not_hidden_by_an_outage_of_another_shard(run_here, urls, server, looks):
    spoil(server, "data/train-000000.tar")
    server.faults = [None] * looks + [None, *DOWN]
    status, document = run_here(verify.main)(*urls)
    assert [each["rule"] for each in document["findings"]] == ["damaged shard", "unread shard"]
    assert status == 1


def test_an_outage_between_check_and_repair_writes_no_repair(
    run_here, urls, server, looks, tmp_path
):
    spoil(server, "data/train-000000.tar")
    # After classes.json, 3 shards, and the tables of the last two.
    server.faults = [None] * (looks + 6) + DOWN
    status, document = run_here(verify.main)(*urls, "--repair", tmp_path / "repaired")
    assert [each["rule"] for each in document["findings"]] == ["damaged shard", "unread shard"]
    assert (status, document["repairs"]) == (1, {})
    assert not (tmp_path / "repaired").exists()
    status, document = run_here(verify.main)(*urls, "--repair", tmp_path / "repaired")
    assert (status, next(iter(document["repairs"].values()))["saved"]) == (1, 3)


def test_an_outage_while_a_repeated_key_is_looked_up_loses_no_finding(
    run_here, urls, server, looks
):
    server.objects["data/train-000001.tar"] = server.objects["data/train-000000.tar"]
    server.faults = [None] * (looks + 5) + DOWN  # after 3 shards, and the tables of the last two
    status, document = run_here(verify.main)(*urls)
    [found] = document["findings"]
    assert (status, found["rule"], found["sample"]) == (0, "repeated key", None)


def test_a_refused_shard_is_not_read_and_an_absent_one_is_missing(run_here, urls, server):
    del server.objects["data/train-000001.tar"]
    server.faults = [None, *[Fault("status", 403)] * 2]
    status, document = run_here(info.main)(*urls[1:], urls[0])
    rules = {each["shard"].rpartition("/")[2]: each["rule"] for each in document["findings"]}
    assert rules == {"train-000001.tar": "missing shard", "train-000002.tar": "unread shard"}
    assert (status, document["samples"]) == (1, 4)


def test_an_outage_while_the_names_of_classes_are_looked_up_writes_no_repair_without_them(
    run_here, urls, server, tmp_path, monkeypatch
):
    monkeypatch.setattr(shard_options, "LOOK_UP", QUICK)
    server.objects["data/classes.json"] = b'["cat", "dog", "owl"]'
    spoil(server, "data/train-000000.tar")
    server.faults = [*DOWN]
    repaired = tmp_path / "repaired"
    assert run_here(verify.main)(*urls, "--repair", repaired) == (2, None)
    assert not repaired.exists()
    assert run_here(verify.main)(*urls, "--repair", repaired)[0] == 1
    assert (repaired / "classes.json").exists()
