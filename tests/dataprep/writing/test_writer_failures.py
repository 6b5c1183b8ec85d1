"""What `ShardWriter` leaves after a failure, and what it does not touch in a folder of others."""

import pytest

from lightning_shards.dataprep import writer as writer_module
from lightning_shards.dataprep.tar_writer import TarWriter
from lightning_shards.errors import ConfigError
from tests.dataprep.writing.conftest import SAMPLES, visible


def failing_at(monkeypatch, owner, name, call):
    """Lets one call of a function fail as on a full disk; later ones work."""
    function, calls = getattr(owner, name), []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == call:
            raise OSError(28, "No space left on device")
        return function(*arguments)

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize(
    ("owner", "name", "call"), [(writer_module, "new_file", 2), (TarWriter, "_put", 47)]
)
def test_half_a_sample_is_never_finished(tmp_path, write, monkeypatch, owner, name, call):
    failing_at(monkeypatch, owner, name, call)
    with pytest.raises(OSError, match="No space"):
        write()
    assert list(visible(tmp_path / "out")) == ["shard-000000.tar"]
    write()
    write(folder="undisturbed")
    assert visible(tmp_path / "out") == visible(tmp_path / "undisturbed")


def test_a_finished_folder_is_not_touched_by_a_second_try(tmp_path, write):
    write()
    before = visible(tmp_path / "out")
    with pytest.raises(ConfigError, match="finished data set"):
        write()
    assert visible(tmp_path / "out") == before


# --- folders


def test_an_error_leaves_whole_shards_and_no_index(tmp_path, write):
    def failing():
        yield from SAMPLES[:8]
        raise RuntimeError("camera unplugged")

    with pytest.raises(RuntimeError, match="camera"):
        write(failing())
    assert list(visible(tmp_path / "out")) == ["shard-000000.tar"]
    assert not list((tmp_path / "out").glob(".*.part"))
    write()
    write(folder="undisturbed")
    assert visible(tmp_path / "out") == visible(tmp_path / "undisturbed")


def test_other_prefixes_may_share_no_folder_with_an_index(tmp_path, write):
    write(prefix="train")
    with pytest.raises(ConfigError, match=r"'train' and is now 'val'"):
        write(prefix="val")
