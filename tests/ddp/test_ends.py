"""Two real ranks that do not end well: killed, or at a bad sample."""

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import is_running, wait_for

pytestmark = [pytest.mark.ddp, pytest.mark.slow]

RANK_SCRIPT = Path(__file__).with_name("rank.py")
RANKS = (0, 1)
GONE_WITHIN_S = 5.0


def blocked(folder: Path, rank: int) -> dict[str, Any] | None:
    """What a rank wrote down when it began to wait."""
    path = folder / f"killed-{rank}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return next((each for each in records if each["kind"] == "blocked"), None)


@pytest.fixture(scope="module")
def killed(tmp_path_factory, pack_into, start_ranks):
    """Two ranks within a step; rank 0 is killed, and when its workers had their time, rank 1."""
    folder = tmp_path_factory.mktemp("killed")
    pack_into(folder, [20, 20], "shard")
    case = {
        "name": "killed",
        "splits": {"train": {"urls": f"{folder}/shard-*.tar", "options": {}}},
        "data": {"num_workers": 2, "batch_size": 2},
        "block_at": 3,
    }
    with start_ranks(folder, [case]):
        assert wait_for(lambda: all(blocked(folder, rank) for rank in RANKS), within_s=200)
        found = {rank: dict(blocked(folder, rank) or {}) for rank in RANKS}
        for rank in RANKS:
            children = psutil.Process(found[rank]["pid"]).children(recursive=True)
            others = {found[other]["pid"] for other in RANKS}
            found[rank]["helpers"] = [each.pid for each in children if each.pid not in others]
        found[0]["helpers"] = sorted({*found[0]["helpers"]} - {*found[1]["helpers"]})
        for rank in RANKS:
            running = [pid for pid in found[rank]["workers"] if is_running(pid)]
            found[rank]["running_before"] = len(running)
            psutil.Process(found[rank]["pid"]).send_signal(signal.SIGKILL)
            for kind in ("workers", "helpers"):
                wait_for(lambda: not any(map(is_running, found[rank][kind])), GONE_WITHIN_S)  # noqa: B023
                left = [pid for pid in found[rank][kind] if is_running(pid)]
                found[rank][f"{kind}_left"] = left
        yield found


@pytest.mark.parametrize("rank", RANKS)
def test_no_worker_outlives_a_rank_that_is_killed(killed, rank):
    assert len(killed[rank]["workers"]) == killed[rank]["running_before"] == 2
    assert killed[rank]["workers_left"] == []


@pytest.mark.parametrize("rank", RANKS)
def test_no_other_process_outlives_a_rank_that_is_killed(killed, rank):
    """Such as the fork server."""
    assert len(killed[rank]["helpers"]) >= 2
    assert killed[rank]["helpers_left"] == []


def test_a_bad_sample_deep_in_a_shard_ends_both_ranks_and_all_workers(
    tmp_path, pack_into, forked_programs
):
    shard = Path(pack_into(tmp_path, [40], "shard")[0])
    bad = shard.read_bytes().replace(b"PNG", b"GNP")  # all of them, but for the first few
    first = shard.read_bytes()[:20_000]
    shard.write_bytes(first + bad[len(first) :])
    case = {
        "name": "bad",
        "splits": {
            "train": {"urls": str(shard), "options": {"reader": "stream", "shuffle_buffer": 0}},
        },
        "data": {"num_workers": 1, "batch_size": 2},
    }
    (tmp_path / "cases.json").write_text(json.dumps([case]))
    output, statuses = forked_programs.run([RANK_SCRIPT, tmp_path], tmp_path, ranks=2)
    assert 0 not in statuses
    assert "SampleError: sample '0000" in output
    assert "member 'png'" in output
    assert "of field 'image': this is no image" in output
