"""What the tools refuse of remote shards, before anything is fetched."""

import pytest

from lightning_shards.tools import index, pack, reshard
from tests.readers.file_server import serving
from tests.tools.conftest import write_samples

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(write_samples(tmp_path_factory.mktemp("served") / "data", [4, 3])) as server:
        yield server


@pytest.mark.parametrize(
    ("patterns", "options", "message"),
    [
        (["{root}/train-000000.tar"], [], "name a folder for the indexes by --output DIR"),
        (["{folder}/train-000000.tar", "{root}/a.tar"], ["--output", "out"], "are in 2 folders"),
        (["{root}/a.tar", "http://localhost:1/a.tar"], ["--output", "out"], "are in 2 folders"),
        (["{root}/a.tar?part=1", "{root}/a.tar?part=2"], ["--output", "out"], "name one shard"),
        (["pipe:cat a.tar"], ["--output", "out"], "would run a shell command"),
    ],
)
def test_index_refuses_what_it_could_not_write_before_anything_is_fetched(
    served, tmp_path, monkeypatch, refused_by, patterns, options, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    root = f"http://127.0.0.1:{served.server_address[1]}"
    patterns = [each.format(root=root, folder=served.folder) for each in patterns]
    assert message in refused_by(index, *patterns, *options)
    assert served.asked == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [pack, reshard])
def test_a_refusal_of_remote_shards_hides_the_secrets_of_their_urls(command, refused_by, tmp_path):
    url = "https://u:secret@host/0.tar?X-Amz-Signature=secret"
    said = refused_by(command, url, "--out", tmp_path / "out")
    assert "reads local shards only, and 1 of 1 are remote" in said
    assert "host/0.tar" in said
    assert "secret" not in said
