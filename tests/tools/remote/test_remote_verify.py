"""`lightning-shards verify` finds changed bytes of remote shards as of local ones.

The server has no checksums of its own to compare, and all changes here leave sizes as they were.
"""

import json
import zlib

import pytest
from fault_server import Fault

from lightning_shards.tools import index, verify
from tests.shards.remote.published import publish, server_put
from tests.tools.conftest import samples_of
from tests.tools.remote.conftest import COUNTS

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

UPLOAD = ["--format", "wids,members", "--upload"]
SHARD = "data/train-000001.tar"
MEMBER = b"00005.cls"  # a label: nothing but a checksum can tell


@pytest.fixture
def urls(folder, server):
    return f"{server.url}/data/train-{{000000..000002}}.tar?sig=s3cr3t"


@pytest.fixture
def run(run_json, tmp_path):
    """Runs a tool, `verify` if no other is named, with the cache of the index or another one."""

    def call(*arguments, tool=verify, cache="cache"):
        given = ["--cache-dir", tmp_path / cache, "--processes", 1]
        status, document = run_json(tool.main, [*arguments, *given])
        assert "s3cr3t" not in json.dumps(document)
        return status, document

    return call


@pytest.fixture
def indexed(urls, run):
    """The URLs once the shards were read, and their index was put beside them."""
    assert run(urls, *UPLOAD, tool=index)[0] == 0
    return urls


def change(server, what=MEMBER, by=512):
    """Change one byte so many bytes behind a name: the first of its data, or of its header."""
    data = bytearray(server.objects[SHARD])
    data[data.index(what) + by] ^= 1
    server.objects[SHARD] = bytes(data)


def remove(server, *names):
    """Take away the objects whose names end so."""
    for name in [name for name in server.objects if name.endswith(names)]:
        del server.objects[name]


def found(document):
    return [(each["rule"], each["shard"].rpartition("/")[2]) for each in document["findings"]]


CHANGED = ("changed member", "train-000001.tar"), ("changed shard", "train-000001.tar")


@pytest.mark.parametrize(
    ("removed", "cache", "expected"),
    [
        ((), "cache", CHANGED),
        ((".members", ".json"), "cache", CHANGED[:1]),  # the table that is kept
        ((".json",), "other", CHANGED[:1]),  # the table beside the shard
        ((".members",), "other", CHANGED[1:]),  # the MD5 in wids.json
        ((".members", ".json"), "other", ()),  # nothing is known
    ],
)
def test_a_changed_byte_is_found_by_each_checksum_alone(
    run, indexed, server, removed, cache, expected
):
    change(server)
    remove(server, *removed)
    status, document = run(indexed, cache=cache)
    assert (status, found(document)) == (1 if expected else 0, list(expected))


def test_sound_shards_are_well(run, indexed):
    for cache in ("cache", "other"):
        status, document = run(indexed, cache=cache)
        assert (status, document["samples"], document["findings"]) == (0, sum(COUNTS), [])


def test_the_sample_and_the_byte_are_named(run, indexed, server):
    change(server)
    data = server.objects[SHARD]
    finding = run(indexed, cache="other")[1]["findings"][0]
    assert (finding["sample"], finding["byte"]) == ("00005", data.index(MEMBER) + 512)
    assert "00005.cls" in finding["message"]


def test_a_table_that_was_kept_is_found_by_a_newly_signed_url(run, indexed, server):
    change(server)
    remove(server, ".members", ".json")
    status, document = run(indexed.replace("s3cr3t", "another"))
    assert (status, found(document)) == (1, list(CHANGED[:1]))


def test_the_table_beside_a_shard_is_believed_before_an_older_one(run, indexed, server):
    """Another machine has indexed a shard that was written anew."""
    change(server)
    assert run(indexed, *UPLOAD, tool=index, cache="of another")[0] == 0
    assert run(indexed)[1]["findings"] == []


def test_a_table_without_checksums_does_not_hide_one_that_has_them(
    run, indexed, server, folder, tmp_path
):
    remove(server, ".json")
    publish(
        sorted(folder.glob("*.tar")), server_put(server), tmp_path, with_crc32=False, counts=COUNTS
    )
    change(server)
    status, document = run(indexed)
    assert (status, found(document)) == (1, list(CHANGED[:1]))
    assert run(indexed, cache="other")[0] == 0


@pytest.mark.parametrize("data", [b"no table", zlib.compress(bytes(1 << 24))])
def test_a_table_that_cannot_be_used_is_told(run, indexed, server, data):
    remove(server, ".json")
    server.objects[f"{SHARD}.members"] = data
    status, document = run(indexed, cache="other")
    assert (status, found(document)) == (1, [("unusable table", "train-000001.tar")])
    assert "train-000001.tar.members cannot be used" in document["findings"][0]["message"]
    change(server)
    assert run(indexed)[1]["findings"][0]["rule"] == "changed member"  # by the one that is kept


def test_an_outage_while_the_table_is_fetched_is_no_sound_shard(run, indexed, server):
    server.asked.clear()
    run(indexed, cache="other")
    names = [asked.path.partition("?")[0] for asked in server.asked]
    server.faults = [None] * names.index(f"/{SHARD}.members") + [Fault("status", 503)] * 10
    status, document = run(indexed, cache="other")
    assert (status, found(document)) == (2, [("unread shard", "train-000001.tar")])


def test_a_changed_sample_is_left_out_of_a_repair(run, indexed, server, folder, tmp_path):
    change(server)
    document = run(indexed, "--repair", tmp_path / "out", cache="other")[1]
    [repair] = document["repairs"].values()
    expected = samples_of(folder / "train-000001.tar")
    del expected["00005"]
    assert list(repair["lost"]) == ["00005"]
    assert samples_of(tmp_path / "out" / "train-000001.tar") == expected


@pytest.mark.parametrize(("removed", "cache"), [((), "other"), ((".members",), "cache")])
def test_a_table_saves_what_lies_under_a_damaged_header(
    run, indexed, server, folder, tmp_path, removed, cache
):
    change(server, by=1)
    remove(server, *removed)
    document = run(indexed, "--repair", tmp_path / "out", cache=cache)[1]
    [repair] = document["repairs"].values()
    assert repair["lost"] == {}
    saved = samples_of(tmp_path / "out" / "train-000001.tar")
    assert saved == samples_of(folder / "train-000001.tar")


def test_a_repair_has_the_classes_of_the_originals(run, urls, server, tmp_path):
    server.objects["data/classes.json"] = b'["cat", "dog", "owl"]'
    change(server, by=1)
    out = tmp_path / "out"
    assert run(urls, "--repair", out)[0] == 1
    classes = json.loads((out / "classes.json").read_text())
    assert classes == {"cat": 0, "dog": 1, "owl": 2}


def test_a_folder_of_repairs_with_other_classes_is_refused(run, urls, server, tmp_path):
    server.objects["data/classes.json"] = b'["cat", "dog", "owl"]'
    change(server, by=1)
    out = tmp_path / "out"
    out.mkdir()
    (out / "classes.json").write_text('["owl", "dog", "cat"]')
    assert run(urls, "--repair", out) == (2, None)
    assert [path.name for path in out.iterdir()] == ["classes.json"]


def test_the_samples_that_a_cut_took_are_named(run, indexed, server):
    """The table is larger than what is left of the shard."""
    server.objects[SHARD] = server.objects[SHARD][:600]
    document = run(indexed, cache="other")[1]
    names = {each["sample"] for each in document["findings"] if each["rule"] == "changed member"}
    assert names == {"00004", "00005", "00006"}


@pytest.mark.parametrize(("folders", "expected"), [(["a"], 1), (["data"], 1), (["a", "b"], 0)])
def test_the_md5_of_a_shard_that_was_moved_counts_if_it_is_certain(
    run, urls, server, folders, expected
):
    entry = {"nsamples": COUNTS[1], "filesize": len(server.objects[SHARD])}
    entries = [
        {"url": f"{folder}/train-000001.tar", "md5sum": folder * 8} | entry for folder in folders
    ]
    content = {"wids_version": 1, "shardlist": entries}
    server.objects["data/wids.json"] = json.dumps(content).encode()
    status, document = run(urls)
    assert (status, len(found(document))) == (expected, expected)
    server.objects["data/wids.json"] = server.objects["data/wids.json"].replace(
        b'"nsamples": 3', b'"nsamples": 4'
    )
    assert run(urls)[0] == 1  # the count of both is believed
