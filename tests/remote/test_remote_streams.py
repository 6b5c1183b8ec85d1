"""Training from remote shards as streams: the batches of local ones, or an error that says why."""

import re
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from fault_server import Fault

from lightning_shards.errors import DamagedShardError, IndexMismatchError, StorageError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.remote import storage as remote_storage
from tests.remote.conftest import WITHOUT_RANGES, options_of, url_of
from tests.remote.published import batches, module

pytestmark = pytest.mark.network


@pytest.fixture(autouse=True)
def small_ranges(quick, monkeypatch):
    """Several ranges of a small shard."""
    monkeypatch.setattr(remote_storage, "_FIRST_BYTES", 700)
    monkeypatch.setattr(remote_storage, "_RANGE_BYTES", 2_000)


@pytest.fixture
def stream(tmp_path):
    return partial(module, tmp_path=tmp_path, reader="stream", sampling="sequential")


@pytest.mark.usefixtures("published_shards")
def test_shards_of_a_bucket_are_streamed_as_local_ones(local, server, stream):
    urls = [url_of(server, "s3", Path(path).name) for path in local]
    found = stream(urls, loader={"storage_options": {"s3": options_of(server)["s3"]}})
    assert batches(found) == batches(stream(local))


@pytest.mark.parametrize("answer", WITHOUT_RANGES, ids=str)
def test_shards_of_a_server_without_ranges_are_streamed_also_where_tables_lie_beside_them(
    answer, published_shards, local, server, tmp_path, caplog
):
    server.always = answer
    own = {"sampling": "sequential"}
    found = module(published_shards, tmp_path, **own)
    assert batches(found) == batches(module(local, tmp_path, reader="stream", **own))
    message = r"all of the object, and no range .* use a server that knows ranges, take reader='str"
    assert re.search(message, caplog.text)
    with pytest.raises(StorageError, match=message):
        module(published_shards, tmp_path, "other", reader="indexed", **own).source("train")


def test_a_shard_that_is_another_one_at_its_next_visit_is_told_once(
    published_shards, server, stream, caplog
):
    made = stream(published_shards).source("train").batches(Place(), Cursor())
    list(islice(made, 8))
    server.has_etags = False  # so that the versions of all three are others
    list(islice(made, 16))
    assert caplog.text.count("another one than when it was streamed last") == 3


def test_a_shard_without_length_that_ends_too_early_is_damaged(published_shards, server, stream):
    """Where the connection ends with the answer, the end of a tar is in the tar."""
    source = stream(published_shards).source("train")
    server.always = WITHOUT_RANGES[1]._replace(value=3_000)
    with pytest.raises(DamagedShardError, match="cut short"):
        list(islice(source.batches(Place(), Cursor()), 99))


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (Fault("status", 500), StorageError, r"500 Internal Server Error \(try 10 of 10\)"),
        (Fault("replace"), IndexMismatchError, "another version"),
    ],
)
def test_no_substitute_hides_an_error_of_the_network(
    fault, error, message, published_shards, server, stream
):
    settings = {"on_bad_sample": "substitute", "max_bad": 1_000}
    source = stream(published_shards, **settings).source("train")
    made = source.batches(Place(), Cursor())
    next(made)
    server.always = fault
    with pytest.raises(error, match=message) as caught:
        list(islice(made, 99))
    assert caught.type is error
    assert "s3cr3t" not in str(caught.value)
