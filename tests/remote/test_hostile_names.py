"""Names of objects that URLs escape, split or expand."""

import json
from urllib.parse import quote

import pytest

from tests.remote.published import batches, module, publish, server_put

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]


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
    ["a%20b.tar", "é€.tar", "a+b&c=d.tar", "a::b.tar", "{a..c}.tar", "a?b#c.tar", "%2e%2e.tar"],
)  # fmt: skip
def test_a_shard_of_any_name_is_read_by_its_escaped_url(name, local, server, tmp_path):
    named(local, server, tmp_path, name)
    root = f"{server.url}/data"
    urls = [f"{root}/{quote(each, safe='')}?X-Amz-Signature=s3cr3t" for each in
            ("shard-000000.tar", name, "shard-000002.tar")]  # fmt: skip
    data = module(urls, tmp_path)
    assert data.source("train").index.counts is not None
    assert batches(data) == batches(module(local, tmp_path))
