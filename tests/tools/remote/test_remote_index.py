"""What tools guarantee of remote shards, in the names of their tests: `index` reads each once."""

import json

import pytest
from fault_server import Fault

from lightning_shards.errors import ConfigError
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.tables import TableStore, opened_table
from lightning_shards.tools import index, pack, verify
from tests.remote.published import batches, module
from tests.tools.remote.conftest import COUNTS

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

TABLES = ["--format", "wids,members"]


@pytest.fixture
def urls(folder, server):
    return f"{server.url}/data/train-{{000000..000002}}.tar"


@pytest.fixture
def run(run_here):
    return run_here(index.main)


def test_what_is_uploaded_is_trained_from(run, urls, folder, server, tmp_path):
    status, document = run(urls, *TABLES, "--upload")
    names = [f"train-{shard:06d}.tar.members" for shard in range(3)] + ["wids.json"]
    assert status == 0
    assert document["written"] == [f"{server.url}/data/{name}" for name in names]
    local = TableStore(CacheFolder(tmp_path / "local"), with_crc32=True)
    for path in sorted(folder.glob("*.tar")):
        table = opened_table(path.name, server.objects[f"data/{path.name}.members"])
        assert table.has_same_members(local.table_of(path))
        assert table.crc32 is not None
    remote = module(urls, tmp_path, cache="fresh", reader="indexed")
    require_same_batches(remote, folder, tmp_path)


def require_same_batches(remote, folder, tmp_path):
    local = module(str(folder / "*.tar"), tmp_path)
    for data in (remote, local):
        data.fields = {"image": "jpg", "label": "cls"}
    assert batches(remote) == batches(local)


def test_an_index_of_this_machine_serves_for_shards_of_others(run, urls, folder, server, tmp_path):
    """Of a store beside whose shards nothing can be written."""
    here = tmp_path / "indexes"
    assert run(urls, *TABLES, "--output", here)[0] == 0
    assert set(server.objects) == {f"data/{path.name}" for path in folder.iterdir()}
    remote = module(urls, tmp_path, cache="fresh", index=str(here))
    require_same_batches(remote, folder, tmp_path)
    assert remote.source("train").describe().reader == "indexed"
    mix = {"web": {"urls": urls, "index": str(here), "weight": 1}}
    mixed = module(None, tmp_path, cache="mixed", mix=mix, epoch_of="web")
    assert mixed.source("train").describe().reader == "indexed"


def test_an_index_that_is_not_there_or_is_of_local_shards_is_refused(urls, folder, tmp_path):
    with pytest.raises(ConfigError, match=r"index='.*gone' is no folder.*index URLS --format wids"):
        module(urls, tmp_path, index=str(tmp_path / "gone"))
    data = module(str(folder / "*.tar"), tmp_path, index=str(tmp_path))
    with pytest.raises(ConfigError, match=r"index=.* of 'train' is for remote shards, and .*leave"):
        data.source("train")


def test_a_shard_that_changes_while_it_is_read_has_no_index(run, urls, server, tmp_path):
    server.faults = [None, None, Fault("replace")]
    status, document = run(urls, "--output", tmp_path / "out")
    [found] = [each for each in document["findings"] if each["is_failure"]]
    assert (status, document["written"], found["rule"]) == (2, [], "unread shard")
    assert "train-000000.tar changed while it was read" in found["message"]
    assert len(list((tmp_path / "cache").rglob("*.members"))) == 2


def test_a_shard_that_is_refused_does_not_keep_others_from_being_read_and_is_read_by_the_next_run(
    run, urls, server, tmp_path
):
    server.faults = [None] * 3 + [Fault("status", 403)] * 2
    given = (f"{urls}?sig=s3cr3t", *TABLES, "--output", tmp_path / "out")
    status, document = run(*given)
    [found] = [each for each in document["findings"] if each["is_failure"]]
    assert (status, document["samples"], document["written"]) == (2, 6, [])
    assert found["shard"] == f"{server.url}/data/train-000001.tar"
    assert found["rule"] == "unread shard"
    assert "s3cr3t" not in json.dumps(document)
    assert len(list((tmp_path / "out").iterdir())) == 2
    server.asked.clear()
    assert run(*given)[1]["samples"] == sum(COUNTS)
    read = {each.path for each in server.asked if each.headers.get("range") != "bytes=0-0"}
    assert [path for path in read if ".tar?" in path] == ["/data/train-000001.tar?sig=s3cr3t"]


@pytest.mark.parametrize(
    ("patterns", "options", "message"),
    [
        (["{root}/train-000000.tar"], [], "name a folder for the indexes by --output DIR"),
        (["{folder}/train-000000.tar", "{root}/a.tar"], ["--output", "out"], "are in 2 folders"),
        (["{root}/a.tar?part=1", "{root}/a.tar?part=2"], ["--output", "out"], "name one shard"),
        (["pipe:cat a.tar"], ["--output", "out"], "would run a shell command"),
    ],
)
def test_what_could_not_be_written_is_refused_before_anything_is_fetched(
    server, folder, refused_by, patterns, options, message
):
    patterns = [each.format(root=f"{server.url}/data", folder=folder) for each in patterns]
    assert message in refused_by(index, *patterns, *options)
    assert server.asked == []


@pytest.mark.parametrize(("tool", "more"), [(pack, ["--out", "out"]), (verify, [])])
def test_a_refusal_of_remote_shards_hides_the_secrets_of_their_urls(tool, more, refused_by):
    said = refused_by(tool, "https://u:secret@host/0.tar?X-Amz-Signature=secret", *more)
    assert "reads local shards only, and 1 of 1 are remote" in said
    assert "host/0.tar" in said
    assert "secret" not in said


# --- what is beside the shards already


def test_what_is_beside_the_shards_is_asked_for_and_put_there_with_their_query(run, server, folder):
    """As readers ask for it: the query may hold the token of a store that gives nothing else."""
    server.objects["data/a/0.tar"] = (folder / "train-000000.tar").read_bytes()
    status, document = run(f"{server.url}/data/a/0.tar?token=s3cr3t", "--upload", *TABLES)
    assert (status, len(document["written"])) == (0, 2)
    assert {each.path.partition("?")[2] for each in server.asked} == {"token=s3cr3t"}
    assert "s3cr3t" not in json.dumps(document)
    assert "data/a/wids.json" in server.objects
