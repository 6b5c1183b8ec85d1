"""Names of objects that URLs escape, split or expand; and files of strangers beside shards."""

import json
from contextlib import suppress
from urllib.parse import quote

import pytest

from lightning_shards.errors import ShardError
from tests.shards.remote.published import COUNTS, batches, module, publish, server_put

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

SHARD = "shard-000001.tar"


def named(local, server, tmp_path, name):
    """The shards on the server, the second one by another name."""
    names = {"shard-000001.tar": name}

    def put(path, data):
        for old, new in names.items():
            path = path.replace(old, new)
            data = data.replace(json.dumps(old).encode(), json.dumps(new).encode())
        server_put(server)(path, data)

    publish(local, put, tmp_path)


@pytest.mark.parametrize(
    "name",
    ["a b.tar", "a%20b.tar", "100%.tar", "é€.tar", "a+b&c=d.tar", "a;b,c.tar", "a@b:c.tar",
     "a::b.tar", "{a..c}.tar", "[1].tar", "~a'\"\\.tar", "a?b#c.tar", "a.tar.tar", "%2e%2e.tar"],
)  # fmt: skip
def test_a_shard_of_any_name_is_read_by_its_escaped_url(name, local, server, tmp_path):
    named(local, server, tmp_path, name)
    root = f"{server.url}/data"
    urls = [f"{root}/{quote(each, safe='')}?X-Amz-Signature=s3cr3t" for each in
            ("shard-000000.tar", name, "shard-000002.tar")]  # fmt: skip
    data = module(urls, tmp_path)
    assert data.source("train").index.counts is not None
    assert batches(data) == batches(module(local, tmp_path))


@pytest.mark.parametrize("name", ["a b.tar", "é€.tar", "100%.tar", "a+b&c=d.tar", "a@b.tar"])
def test_a_shard_is_read_by_its_name_as_it_is_where_that_is_a_url(name, local, server, tmp_path):
    named(local, server, tmp_path, name)
    root = f"{server.url}/data"
    urls = [f"{root}/shard-000000.tar", f"{root}/{name}", f"{root}/shard-000002.tar"]
    assert batches(module(urls, tmp_path)) == batches(module(local, tmp_path))


DEEP = "[" * 100_000
HUGE = "9" * 10_000
ENTRY = {"url": SHARD, "nsamples": 3, "filesize": 1}
FILES = [
    ("sizes.json", DEEP),
    ("sizes.json", f'{{"{SHARD}": {HUGE}}}'),
    ("sizes.json", f'{{"{SHARD}": -1}}'),
    ("sizes.json", f'{{"{SHARD}": {2**39}}}'),
    ("sizes.json", f'{{"{SHARD}": 2}}'),
    ("wids.json", '{"wids_version": 1, "shardlist": [null, [], "x", {"url": {}}]}'),
    ("wids.json", json.dumps({"wids_version": 1, "shardlist": [ENTRY | {"filesize": 10**400}]})),
    ("wids.json", json.dumps({"wids_version": 1, "shardlist": [ENTRY | {"nsamples": 10**400}]})),
    ("wids.json", json.dumps({"wids_version": 1, "shardlist": [
        ENTRY | {"url": url} for url in ("pipe:touch pwned", "file:///etc/passwd", f"../{SHARD}",
                                         f"http://127.0.0.1:9/{SHARD}", "\x00", "a" * 10**6)]})),
    ("wids.json", json.dumps({"wids_version": 1, "shardlist": [
        ENTRY | {"members": name} for name in ("../../etc/passwd", "file:///etc/passwd", 5)]})),
    (f"{SHARD}.members", DEEP),
    (f"{SHARD}.members", "<html>Please log in"),
    ("classes.json", DEEP),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), FILES, ids=range(len(FILES)))
def test_what_a_stranger_put_beside_shards_is_passed_over_or_an_error_of_ours(
    name, text, local, server, tmp_path
):
    publish(local, server_put(server), tmp_path)
    if name == "wids.json":
        del server.objects["data/sizes.json"]
    server.objects[f"data/{name}"] = text.encode()
    urls = f"{server.url}/data/shard-{{000000..000002}}.tar"
    with suppress(ShardError):  # every other error fails
        found = batches(module(urls, tmp_path), world_size=1)
        assert sum(map(len, found)) == sum(COUNTS) // 2
    assert not [each for each in server.asked if "passwd" in each.path or "pwned" in each.path]
