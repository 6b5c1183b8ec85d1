"""Two real ranks that do not end well: at SIGTERM while one gets no batch, or at a bad sample."""

import json
import os
import signal
from pathlib import Path

import pytest
from waiting import is_running, wait_for

pytestmark = [pytest.mark.ddp, pytest.mark.slow]

STALLED_WITHIN_S = 120.0
GONE_WITHIN_S = 20.0


def waits_in_a_collective(folder: Path, stalled: int) -> bool:
    """Whether the other rank is in a step for which the stalled one has no batch."""
    if not (folder / "stalled").exists():
        return False  # it may be in a step still, where Lightning's handler waits for the other one
    steps = [(folder / f"told-{rank}.jsonl").read_text().count("\n") for rank in (0, 1)]
    return 0 < steps[stalled] < steps[1 - stalled]


@pytest.mark.parametrize(("stalled", "are_both_told"), [(0, True), (1, False)])
def test_a_rank_that_gets_no_batch_ends_with_those_that_wait_for_it(
    tmp_path, pack_into, start_ranks, stalled, are_both_told
):
    pack_into(tmp_path, [40], "shard")
    train = {"urls": f"{tmp_path}/shard-*.tar", "options": {"sampling": "shuffled"}}
    data = {"num_workers": 0, "batch_size": 2}
    case = {"name": "told", "splits": {"train": train}, "data": data, "stalled": stalled}
    with start_ranks(tmp_path, [case | {"bare": True}]) as running:
        assert wait_for(lambda: waits_in_a_collective(tmp_path, stalled), STALLED_WITHIN_S)
        for rank, pid in enumerate(running.pids):
            if are_both_told or rank == stalled:
                os.kill(pid, signal.SIGTERM)
        assert wait_for(lambda: not any(map(is_running, running.pids)), GONE_WITHIN_S)


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
    program = Path(__file__).with_name("rank.py")
    output, statuses = forked_programs.run([program, tmp_path], tmp_path, ranks=2)
    assert 0 not in statuses
    assert "SampleError: sample '0000" in output
    assert "member 'png'" in output
    assert "of field 'image': this is no image" in output
