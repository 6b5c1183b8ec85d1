"""Remote shards are indexed where they are, and nothing of them is kept."""

import json
import shutil
import tempfile
from functools import partial

import pytest

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.remote.backend import RetryPolicy
from lightning_shards.remote.transport import TransportSettings
from lightning_shards.shards.index import load_index
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.tools import index, pack, reshard, shard_options
from tests.readers.test_stream_http import serving
from tests.tools.conftest import (
    contents,
    write_members,
    write_samples,
)

pytestmark = pytest.mark.network

COUNTS = [4, 3, 1]
ALL = "train-{000000..000002}.tar"
BROKEN = "the connection broke (try 10 of 10)"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server for three shards: the last has no image, and a key of the first."""
    folder = write_samples(tmp_path_factory.mktemp("served") / "data", COUNTS[:2])
    write_members(folder / "train-000002.tar", [("00002.cls", b"1"), ("00002.txt", b"one")])
    with serving(folder) as server:
        yield server


@pytest.fixture
def folder(served):
    """The folder that is served; what a test puts there is taken away again."""
    before = contents(served.folder)
    yield served.folder
    for name in contents(served.folder).keys() - before:
        (served.folder / name).unlink()


@pytest.fixture
def root(served):
    return f"http://127.0.0.1:{served.server_address[1]}"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files, which every test leaves empty."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    monkeypatch.setenv("TMPDIR", str(path))
    yield path
    assert list(path.iterdir()) == []


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """All times of the policy are divided by 100."""
    made = partial(TransportSettings, policy=RetryPolicy().scaled(0.01))
    monkeypatch.setattr(shard_options, "TransportSettings", made)


@pytest.fixture
def run(run_json, tmp_path, temporary):
    """Runs a tool on remote shards: `index` alone keeps tables, and nothing names the copies."""

    def call(tool, *arguments, processes=1):
        options = ["--cache-dir", tmp_path / "cache", "--processes", processes]
        status, document = run_json(tool.main, [*arguments, *options])
        assert tool is index or not (tmp_path / "cache").exists()
        assert str(temporary) not in json.dumps(document)
        return status, document

    return call


def test_training_takes_the_index_that_was_uploaded(run, folder, root, tmp_path):
    assert run(index, f"{root}/{ALL}", "--output", tmp_path / "out")[0] == 0
    urls = [f"{root}/train-{shard:06d}.tar" for shard in range(3)]
    assert load_index(urls, cache=CacheFolder(tmp_path / "cache")).counts is None
    shutil.copy(tmp_path / "out" / "wids.json", folder)
    assert load_index(urls, cache=CacheFolder(tmp_path / "cache")).counts.tolist() == COUNTS
    module = ShardDataModule(
        SplitConfig(f"{root}/{ALL}", sampling="sequential", reader="stream"),
        fields={"label": "cls"},
        batch_size=2,
        num_workers=0,
        loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
    )
    batches = [batch["label"].tolist() for batch in module.loader("train")]
    assert batches == [[0, 1], [2, 0], [1, 2], [0, 1]]


@pytest.mark.parametrize(
    ("patterns", "options", "message"),
    [
        (["{root}/train-000000.tar"], [], "name a folder for the indexes by --output DIR"),
        (["{folder}/train-000000.tar", "{root}/a.tar"], ["--output", "out"], "are in 2 folders"),
        (["{root}/a.tar", "http://localhost:1/a.tar"], ["--output", "out"], "are in 2 folders"),
        (["{root}/a.tar?part=1", "{root}/a.tar?part=2"], ["--output", "out"], "name one shard"),
        (["pipe:cat a.tar"], ["--output", "out"], "would run a shell command"),
        (["https://nowhere.invalid/a.tar"], ["--output", "out"], "has no address"),
    ],
)
def test_index_refuses_what_it_could_not_write_before_anything_is_fetched(
    served, folder, root, tmp_path, monkeypatch, capsys, patterns, options, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    served.asked.clear()
    with pytest.raises(SystemExit) as stopped:
        index.main([each.format(root=root, folder=folder) for each in patterns] + options)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert served.asked == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [pack, reshard])
def test_a_refusal_of_remote_shards_hides_the_secrets_of_their_urls(command, capsys, tmp_path):
    url = "https://u:secret@host/0.tar?X-Amz-Signature=secret"
    with pytest.raises(SystemExit) as ended:
        command.main([url, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "reads local shards only, and 1 of 1 are remote" in said
    assert "host/0.tar" in said
    assert "secret" not in said
