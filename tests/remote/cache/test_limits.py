"""Which pieces stay, and how many bytes they may take."""

import numpy as np
import pytest

from lightning_shards.errors import ConfigError
from lightning_shards.remote import cache as piece_cache
from lightning_shards.remote.cache import (
    GIB,
    CachedPiece,
    CacheNeed,
    cache_of_run,
    pieces_to_drop,
)
from lightning_shards.shards.files import CacheFolder


@pytest.mark.parametrize(("former", "epochs"), [(0, 4), (540, 5)])
def test_a_fixed_half_is_hit_by_half(former, epochs):
    """Room for half of 1,000 pieces beside a working set of 40, and what a former run left."""
    generator = np.random.default_rng(0)
    shares = generator.random(1000 + former)
    need = CacheNeed("a", 1000, working_set_bytes=40, limit_bytes=540)
    there, hits, clock = {1000 + number: number for number in range(former)}, [], former
    for _ in range(epochs):
        hits.append(0)
        for piece in generator.permutation(1000).tolist():
            hits[-1] += piece in there
            if piece not in there:
                if len(there) >= need.limit_bytes:
                    cached = [CachedPiece(str(p), 1, t, shares[p]) for p, t in there.items()]
                    for dropped in pieces_to_drop(cached, [need], 17):
                        del there[int(dropped.path)]
                clock += 1
                there[piece] = clock
    assert min(hits[epochs - 3 :]) >= 460  # a sixteenth of the room is not promised


def test_a_limit_below_the_working_set_is_refused_with_numbers(tmp_path, caplog, monkeypatch):
    folder, need = CacheFolder(tmp_path / "cache"), CacheNeed("a", 100 * GIB, 3 * GIB + 1)
    with pytest.raises(ConfigError, match=r"cache_gib=3 .* have 3 GiB; set .* 3\.01 or more"):
        cache_of_run(folder, "run", need, 3)
    assert cache_of_run(folder, "run", need, 4).need.limit_bytes == 4 * GIB
    monkeypatch.setattr(piece_cache, "default_limit", lambda *_: 3 * GIB)
    assert cache_of_run(folder, "run", need) is None
    assert "a smaller shuffle_block" in caplog.text
