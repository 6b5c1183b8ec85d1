"""Remote shards are indexed, shown and verified like local ones, and nothing of them is kept."""

import json
import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.dataprep.indexes.index_files import index_from_file
from lightning_shards.dataprep.inspection.check import check_shards
from lightning_shards.dataprep.inspection.survey import survey
from lightning_shards.shards.index import load_index
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage import local_copies
from lightning_shards.tools import index, info, pack, plan, reshard, shard_options, verify
from tests.readers.test_stream_http import serving
from tests.tools.conftest import (
    contents,
    kill_when,
    samples_of,
    start,
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


@pytest.fixture
def run_local(run_json, tmp_path):
    """Runs a tool on the shards of a copy of the served folder; gives its JSON, of `root`."""

    def call(tool, folder, root, *arguments):
        copy = shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True)
        options = ["--cache-dir", tmp_path / "local_cache", "--processes", 1]
        status, document = run_json(tool.main, [copy / "*.tar", *arguments, *options])
        return status, json.loads(json.dumps(document).replace(str(copy), root))

    return call


def rules(document):
    return sorted({finding["rule"] for finding in document["findings"]})


def test_index_writes_of_remote_shards_what_it_writes_of_local_ones(
    run, run_local, folder, root, tmp_path
):
    arguments = ["--checksums", "--format", "wids,sizes"]
    out = tmp_path / "out"
    status, document = run(index, f"{root}/{ALL}", *arguments, "--output", out, processes=2)
    expected = run_local(index, folder, root, *arguments)
    assert document.pop("written") == [str(out / "sizes.json"), str(out / "wids.json")]
    del expected[1]["written"]
    assert (status, document) == expected
    places = {each["rule"]: (each["shard"], each["sample"]) for each in document["findings"]}
    last = (f"{root}/train-000002.tar", "00002")
    assert places == {"missing field": last, "repeated key": last}
    for name in ("wids.json", "sizes.json"):
        assert (out / name).read_bytes() == (tmp_path / "copy" / name).read_bytes()
    assert contents(out).keys() == {"wids.json", "sizes.json"}


@pytest.mark.parametrize(("tool", "arguments"), [(info, ["--classes"]), (verify, [])])
def test_info_and_verify_say_of_remote_shards_what_they_say_of_local_ones(
    run, run_local, folder, root, tool, arguments
):
    found = run(tool, f"{root}/{ALL}", *arguments)
    assert found == run_local(tool, folder, root, *arguments)
    assert found[0] == 0
    assert found[1]["samples"] == sum(COUNTS)


def test_training_takes_the_index_that_was_uploaded(run, folder, root, tmp_path):
    assert run(index, f"{root}/{ALL}", "--output", tmp_path / "out")[0] == 0
    urls = [f"{root}/train-{shard:06d}.tar" for shard in range(3)]
    planned, _ = index_from_file(tmp_path / "out" / "wids.json", root)
    assert (list(planned.urls), planned.counts.tolist()) == (urls, COUNTS)
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


def test_a_plan_of_shards_in_a_counted_folder_has_its_size(root, folder, tmp_path, capsys):
    (folder / "__len__").write_text("8")
    config = {"train": {"urls": f"{root}/{ALL}"}, "fields": {"label": "cls"}, "batch_size": 2}
    (tmp_path / "config.yaml").write_text(json.dumps({"data": config}))
    plan.main(["--config", str(tmp_path / "config.yaml"), "--world-size", "2", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["samples"], document["epochs"][0]["steps"]) == (8, 2)


def test_indexes_of_several_folders_are_written_as_they_are_uploaded(run, folder, root, tmp_path):
    urls = [f"{root}/data/a/train-000000.tar", f"{root}/data/b/c/train-000001.tar"]
    out = tmp_path / "out"
    status, document = run(index, *urls, "--output", out, "--format", "wids,card")
    assert (status, document["samples"]) == (0, 7)
    assert contents(out).keys() == {"README.md", "a/wids.json", "b/c/wids.json"}
    listed = json.loads((out / "b/c/wids.json").read_text())["shardlist"]
    assert [(entry["url"], entry["nsamples"]) for entry in listed] == [("train-000001.tar", 3)]


def test_an_index_of_other_shards_is_not_overwritten(run, root, tmp_path):
    arguments = ["--output", tmp_path / "out", "--format", "wids,sizes"]
    assert run(index, f"{root}/train-000000.tar", *arguments)[0] == 0
    before = contents(tmp_path / "out")
    assert run(index, f"{root}/train-000001.tar", *arguments)[0] == 2
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("path", "rule", "reason"),
    [
        ("gone.tar?X-Amz-Signature=secret", "missing shard", "the server answers 404 Not Found"),
        ("train-000001.tar?cut=3600&X-Amz-Signature=secret", "unread shard", BROKEN),
        ("train-000001.tar?cut=0&X-Amz-Signature=secret", "unread shard", BROKEN),
    ],
)
@pytest.mark.parametrize("tool", [info, verify])
@pytest.mark.timeout(120)
def test_a_shard_that_cannot_be_fetched_whole_is_named_without_secrets_and_is_not_damaged(
    run, root, capsys, tool, path, rule, reason
):
    """The announced length tells: bytes that end early never pass for a shorter shard."""
    host = root.removeprefix("http://")
    status, document = run(tool, f"{root}/train-000000.tar", f"http://user:secret@{host}/{path}")
    assert (status, document["samples"]) == (2 if rule == "unread shard" else 1, 4)
    [found] = document["findings"]
    url = f"{root}/{path.partition('?')[0]}"
    assert (found["rule"], found["shard"], found["is_failure"]) == (rule, url, True)
    assert url in found["message"]
    assert reason in found["message"]
    assert "secret" not in json.dumps(document) + capsys.readouterr().err


def test_a_damaged_remote_shard_is_named_by_its_url_and_repaired_into_the_folder(
    run, run_local, folder, root, tmp_path
):
    data = bytearray((folder / "train-000001.tar").read_bytes())
    data[data.index(b"00005.jpg")] ^= 1
    (folder / "bad.tar").write_bytes(data)
    status, document = run(verify, f"{root}/bad.tar?sig=secret", "--repair", tmp_path / "repaired")
    [found] = document["findings"]
    assert (status, found["rule"], found["shard"]) == (1, "damaged shard", f"{root}/bad.tar")
    assert found["message"].startswith(f"{root}/bad.tar ")
    assert (found["sample"], found["byte"]) == ("00004.txt", data.index(b"10005.jpg"))
    repaired = document["repairs"][f"{root}/bad.tar"]
    assert (repaired["path"], repaired["saved"]) == (str(tmp_path / "repaired" / "bad.tar"), 2)
    assert samples_of(tmp_path / "repaired" / "bad.tar").keys() == {"00004", "00006"}
    assert "secret" not in json.dumps(document)
    scanned = run(info, f"{root}/bad.tar")[1]["findings"]
    assert [each["rule"] for each in scanned] == ["damaged shard"]
    assert scanned[0]["byte"] == found["byte"]


def test_errors_and_progress_name_the_url_and_not_the_copy(run, folder, root, tmp_path, capsys):
    (folder / "empty.tar").write_bytes(b"")
    url = f"{root}/empty.tar"
    repairs = run(verify, url, "--repair", tmp_path / "repaired")[1]["repairs"]
    assert repairs[url]["lost"][""].startswith(f"{url} is empty")
    for scan in (survey, check_shards):
        scan([f"{url}?sig=secret"], cache=CacheFolder(tmp_path / "cache"), show_progress=True)
        assert f"1 of 1 shard in {root}\n" in capsys.readouterr().err


def test_a_tar_that_was_uploaded_cut_is_damaged(run, folder, root, tmp_path):
    """The transfer is whole here, and the tar is not."""
    data = (folder / "train-000001.tar").read_bytes()
    (folder / "cut.tar").write_bytes(data[: data.index(b"00005.jpg")])
    status, document = run(index, f"{root}/cut.tar", "--output", tmp_path / "out")
    assert (status, rules(document), document["written"]) == (1, ["damaged shard"], [])


def test_verify_holds_remote_shards_against_the_index_beside_them(run, folder, root):
    entry = {"url": "train-000001.tar", "nsamples": 5, "filesize": 10}
    (folder / "wids.json").write_text(json.dumps({"wids_version": 1, "shardlist": [entry]}))
    status, document = run(verify, f"{root}/train-00000{{0,1}}.tar")
    [found] = document["findings"]
    assert (status, found["rule"]) == (1, "changed shard")
    assert found["shard"] == f"{root}/train-000001.tar"
    assert f"10 by the index {root}/wids.json" in found["message"]
    (folder / "sizes.json").write_text(json.dumps({"train-000001.tar": 6}))
    rules_found = rules(run(verify, f"{root}/train-000001.tar")[1])
    assert sorted(rules_found) == ["changed shard", "stale count"]  # each file by itself


def test_repaired_copies_of_one_name_are_refused(run, folder, root, tmp_path):
    (folder / "bad.tar").write_bytes(b"no tar" * 200)
    urls = [f"{root}/a/bad.tar", f"{root}/b/bad.tar"]
    assert run(verify, *urls, "--repair", tmp_path / "repaired") == (2, None)
    assert not (tmp_path / "repaired").exists()


def test_pipes_are_run_when_they_are_allowed_and_not_before(run, folder, tmp_path, capsys):
    shard = folder / "train-000000.tar"
    url = f"pipe:TOKEN=secret cat {shard}"
    assert run(info, url) == (2, None)
    assert run(info, url, "--allow-unsafe", "pipe")[1]["samples"] == 4
    status, document = run(verify, f"{url} && exit 3", "--allow-unsafe", "pipe")
    assert (status, rules(document)) == (2, ["unread shard"])
    assert "secret" not in json.dumps(document)


@pytest.mark.parametrize(
    ("patterns", "options", "message"),
    [
        (["{root}/train-000000.tar"], [], "name a folder for the indexes by --output DIR"),
        (["{folder}/train-000000.tar"], ["--output", "out"], "is for remote shards"),
        (["{folder}/train-000000.tar", "{root}/a.tar"], ["--output", "out"], "1 of 2 shards are"),
        (["{root}/a.tar", "http://localhost:1/a.tar"], ["--output", "out"], "different hosts"),
        (["{root}/a.tar?part=1", "{root}/a.tar?part=2"], ["--output", "out"], "name 'a.tar'"),
        (["{root}/a/../../b.tar", "{root}/a/c.tar"], ["--output", "out"], "b.tar has none"),
        (["{root}/a.tar"], ["--output", "out", "--format", "dali"], "index a local copy"),
        (["pipe:cat a.tar"], ["--output", "out", "--allow-unsafe", "pipe"], "by file name"),
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


def test_a_full_disk_is_told_and_is_no_damage(root, tmp_path, monkeypatch, capsys):
    full = partial(Path("/dev/full").open, "r+b")
    monkeypatch.setattr(local_copies, "TemporaryFile", full)
    with pytest.raises(SystemExit) as stopped:
        info.main([f"{root}/train-000000.tar?sig=secret", "--processes", "1"])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "No space left on device; set TMPDIR" in error
    assert "secret" not in error


def test_the_data_of_a_copy_has_no_name_to_outlive_a_killed_program(folder, root, temporary):
    with local_copies.local_copy(f"{root}/train-000000.tar", CacheFolder()) as shard:
        assert Path(shard.path).read_bytes() == (folder / "train-000000.tar").read_bytes()
        [name] = [path for path in temporary.rglob("*") if not path.is_dir()]
        assert name.is_symlink()


@pytest.mark.timeout(120)
def test_a_tool_that_is_killed_leaves_no_data_and_no_index(served, root, tmp_path, temporary):
    served.asked.clear()
    url = f"{root}/train-000000.tar?stall=9000"
    process = start("index", url, "--output", "out", "--processes", "1", cwd=tmp_path)
    kill_when(process, lambda: served.asked)
    assert not (tmp_path / "out").exists()
    assert contents(temporary) == {}
    shutil.rmtree(temporary)
    temporary.mkdir()


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
