"""`lightning-shards show` of remote shards reads no more of them than it shows."""

import json

import pytest
from fault_server import Fault

from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings
from lightning_shards.tools import index, info, show, verify
from tests.shards.remote.published import publish, server_put
from tests.tools.remote.conftest import COUNTS

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]


@pytest.fixture
def url(folder, server):
    return f"{server.url}/data/train-{{000000..000002}}.tar?sig=s3cr3t"


@pytest.fixture
def shown(run_here, tmp_path, capsys):
    """Runs the tool; gives the captions of what it shows."""

    def call(*arguments):
        sheet = tmp_path / "sheet.png"
        status, document = run_here(show.main)(*arguments, "--label", "cls", "--output", sheet)
        assert status == 0
        assert sheet.read_bytes().startswith(b"\x89PNG")
        sheet.unlink()
        return document["labels"]

    return call


def bytes_of_shards(server):
    """How many bytes of each shard were asked for."""
    asked = {}
    for each in server.asked:
        name = each.path.partition("?")[0].rpartition("/")[2]
        start, _, last = each.headers.get("range", "").removeprefix("bytes=").partition("-")
        if name.endswith(".tar"):
            asked[name] = asked.get(name, 0) + int(last) - int(start) + 1
    return asked


@pytest.mark.parametrize("options", [[], ["--samples", 3], ["--samples", 4, "--seed", 1]])
def test_remote_shards_are_shown_like_local_ones(shown, url, folder, server, tmp_path, options):
    expected = shown(folder / "*.tar", *options)
    publish(sorted(folder.glob("*.tar")), server_put(server), tmp_path, counts=COUNTS)
    assert shown(url, *options) == expected
    for name in [name for name in server.objects if name.endswith(".members")]:
        del server.objects[name]
    fresh = ["--cache-dir", tmp_path / "other"]
    assert shown(url, *options, *fresh) == expected  # as streams


def test_with_a_table_only_the_members_that_are_shown_are_read(
    shown, url, folder, server, tmp_path
):
    publish(sorted(folder.glob("*.tar")), server_put(server), tmp_path, counts=COUNTS)
    large = server.objects["data/train-000001.tar"]
    assert shown(url, "--samples", 1) == ["00000 0"]
    read = bytes_of_shards(server)
    assert read.keys() == {"train-000000.tar"}
    assert read["train-000000.tar"] < len(large) // 4


def test_without_a_table_the_stream_ends_at_the_last_sample(shown, url, folder, server):
    shard = server.objects["data/train-000000.tar"]
    server.objects["data/train-000000.tar"] = shard[:4096] + bytes(20 << 20)
    server.objects["data/sizes.json"] = json.dumps(
        {f"train-{shard:06d}.tar": count for shard, count in enumerate(COUNTS)}
    ).encode()
    assert shown(url, "--samples", 1) == ["00000 0"]
    assert bytes_of_shards(server)["train-000000.tar"] < 16 << 20


def test_where_nothing_counts_samples_the_first_of_each_shard_are_shown(shown, url, folder, capsys):
    assert shown(url, "--samples", 5) == ["00000 0", "00001 1", "00004 1", "00005 2", "00007 1"]
    assert shown(url, "--samples", 2) == ["00000 0", "00004 1"]
    show.main([url, "--output", str(folder / "sheet.png"), "--samples", "2"])
    assert "the first ones of 2 shards are shown" in capsys.readouterr().err


def test_a_page_of_remote_shards_is_that_of_local_ones(run_here, url, folder, server, tmp_path):
    pages = []
    for urls in (folder / "*.tar", url):
        page = tmp_path / f"{len(pages)}.html"
        assert run_here(show.main)(urls, "--html", page)[0] == 0
        text = page.read_text()
        assert "s3cr3t" not in text
        pages.append(text.replace(str(folder), f"{server.url}/data"))
    assert pages[0].count("<img") == pages[1].count("<img") > 0
    assert pages[0].partition("<h2")[2] == pages[1].partition("<h2")[2]


def test_an_outage_is_told_without_secrets(url, folder, server, tmp_path, capsys):
    server.always = Fault("status", 503)
    with pytest.raises(SystemExit) as ended:
        show.main([url, "--output", str(tmp_path / "sheet.png"), "--cache-dir", str(tmp_path)])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "503" in said
    assert "s3cr3t" not in said


@pytest.mark.parametrize("tool", [index, info, verify, show])
def test_storage_options_say_how_a_store_is_reached(
    tool, run_here, real_server, monkeypatch, folder, tmp_path
):
    pytest.importorskip("moto", reason="the server of moto comes with the extra `test`")
    store = real_server("moto")
    for variable, value in store.environment.items():
        monkeypatch.setenv(variable, value)
    transport = RemoteTransport(TransportSettings(store.options))
    for path in sorted(folder.glob("*.tar")):
        transport.write(store.url_of(f"{tool.__name__}/{path.name}"), path.read_bytes())
    transport.close()
    urls = store.url_of(f"{tool.__name__}/train-{{000000..000002}}.tar")
    output = {show: tmp_path / "sheet.png", index: tmp_path / "out"}
    given = ["--output", output[tool]] if tool in output else []
    options = ["--storage-options", json.dumps(store.options)]
    status, document = run_here(tool.main)(urls, *given, *options)
    assert status == 0
    if tool is show:
        assert len(document["labels"]) == sum(COUNTS)
    else:
        assert document["samples"] == sum(COUNTS)
