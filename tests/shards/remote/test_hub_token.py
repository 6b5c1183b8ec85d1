"""The hub's token: where it is looked for, that it goes to the hub alone, and is never shown."""

import pytest

from lightning_shards.errors import ConfigError
from lightning_shards.shards.remote.hub import hub_token
from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings
from tests.shards.remote.contract import DATA

pytestmark = pytest.mark.network

URL = "hf://datasets/me/data/a.tar"
VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME")


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A home of its own, and no variables."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def keep(path, token):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(token)


def sent(server, folder):
    """The authorizations that come to our server as hub and as its storage."""
    server.objects["data/a.tar"] = DATA
    settings = TransportSettings({"hf": {"endpoint": server.url}}, cache_dir=str(folder / "kept"))
    transport = RemoteTransport(settings)
    assert transport.read(URL, 0, 9).data == DATA[:9]
    transport.close()
    return [each.headers.get("authorization") for each in server.asked]


def test_the_token_of_a_file_goes_to_the_hub_and_nowhere_else(home, server):
    keep(home / ".cache/huggingface/token", "hf_s3cr3t\n")
    assert sent(server, home) == ["Bearer hf_s3cr3t", None]


def test_the_hubs_own_package_is_not_imported_for_it(home, monkeypatch):
    (home / "huggingface_hub.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.setenv("HF_TOKEN", "hf_of_variable")
    assert hub_token() == "hf_of_variable"


def test_variables_go_before_files_and_the_newer_one_before_the_older(home, monkeypatch):
    assert hub_token() is None
    keep(home / ".cache/huggingface/token", "hf_of_home\n")
    assert hub_token() == "hf_of_home"
    keep(home / "xdg/huggingface/token", "hf_of_xdg")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert hub_token() == "hf_of_xdg"
    keep(home / "hf/token", "hf_of_hf_home")
    monkeypatch.setenv("HF_HOME", "~/hf")
    assert hub_token() == "hf_of_hf_home"
    keep(home / "mine", " hf_of_path\n")
    monkeypatch.setenv("HF_TOKEN_PATH", "~/mine")
    assert hub_token() == "hf_of_path"
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", "hf_of_old_variable")
    assert hub_token() == "hf_of_old_variable"
    monkeypatch.setenv("HF_TOKEN", "hf_of_variable\n")
    assert hub_token() == "hf_of_variable"


@pytest.mark.parametrize("empty", ["", " \n"])
def test_an_empty_variable_says_nothing(empty, home, monkeypatch):
    keep(home / ".cache/huggingface/token", "hf_of_home")
    for name in VARIABLES[:2]:
        monkeypatch.setenv(name, empty)
    for name in VARIABLES[2:]:
        monkeypatch.setenv(name, "")
    assert hub_token() == "hf_of_home"


@pytest.mark.parametrize("token", ["hf_s3cr3t\r\nX-Other: 1", "hf_s3cr3t two", "hf_s3cr3té"])
@pytest.mark.parametrize("is_variable", [True, False])
def test_what_no_header_can_hold_is_an_error_that_does_not_show_it(
    token, is_variable, home, monkeypatch, server
):
    if is_variable:
        monkeypatch.setenv("HF_TOKEN", token)
    else:
        keep(home / ".cache/huggingface/token", token)
    with pytest.raises(ConfigError, match=r"the token in .* and so cannot be one; copy") as caught:
        sent(server, home)
    assert "s3cr3t" not in f"{caught.value!r} {caught.value.__context__!r}"
    assert server.asked == []
