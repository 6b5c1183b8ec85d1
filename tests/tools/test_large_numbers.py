"""Numbers that no machine holds are refused in one line."""

import json

import pytest

from lightning_shards.tools import bench, pack, plan, show, trace
from tests.tools.conftest import write_members

HUGE, LONGEST = "9" * 400, "9" * 5000  # no float, and more digits than Python reads


@pytest.mark.parametrize(
    ("tool", "options", "message"),
    [
        (show, ["SHARD", "--seed", "-1"], "--seed must be at least 0, got -1"),
        (pack, ["SHARD", "--out", "out", "--max-bytes", "0"], "--max-bytes must be at least 1"),
        (plan, ["--config", "CONFIG", "--world-size", HUGE], "samples do not fill one step of"),
        (bench, ["--config", "CONFIG", "--num-workers", LONGEST], "--num-workers: invalid int"),
        (trace, ["--config", "CONFIG", "--epoch", "0", "--steps", f"0:{LONGEST}"], "must be A:B"),
    ],
)
def test_a_number_that_cannot_be_is_refused(tmp_path, monkeypatch, capsys, tool, options, message):
    monkeypatch.chdir(tmp_path)
    shard = write_members(tmp_path / "a.tar", [("0.txt", b"x"), ("1.txt", b"x")])
    train = {"urls": str(shard), "sampling": "sequential"}
    data = {"train": train, "fields": {"text": "txt"}, "loader": {"cache_dir": str(tmp_path)}}
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({"data": data}))
    known = {"SHARD": str(shard), "CONFIG": str(config)}
    with pytest.raises(SystemExit) as ended:
        tool.main([known.get(word, word) for word in options])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
