"""The way of a sample through the package stays as short as it is."""

from collections import Counter

from lightning_shards.readers.read_ahead import ReadBuffer
from tests.trace_sample import moves_of, one_batch_read_ahead, trace_sample

MOST_MOVES = 20
MOST_CALLS = 46
MOST_CALLERS = 2


def test_a_sample_comes_to_its_batch_in_few_moves(tmp_path, monkeypatch):
    monkeypatch.setattr(ReadBuffer, "__init__", one_batch_read_ahead())
    calls = trace_sample(tmp_path)
    moves = moves_of(calls)
    assert len(moves) <= MOST_MOVES, moves
    assert len(calls) <= MOST_CALLS, calls
    assert max(Counter(module for _, module in moves).values()) <= MOST_CALLERS
    assert {
        "loader",
        "readers.read_ahead",
        "shards.storage.local",
        "samples.crops",
    } <= {module for _, module in moves}
