"""What `trace` stands on; that it equals training is tested in tests/tools/trace/test_trace.py."""

import pytest

from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Place
from lightning_shards.readers import stream
from lightning_shards.readers.source import batch_keys


def unchanged(samples):
    return samples


def test_stages_are_refused(pack_shards, make_source):
    source = make_source(pack_shards([4]), stages=(unchanged,))
    with pytest.raises(ConfigError, match="stages"):
        batch_keys(source, Place(), 0, range(1), num_workers=1)


def test_only_the_workers_of_these_steps_read(pack_shards, make_source, monkeypatch):
    seen = []
    whole = stream.StreamSource.batches
    monkeypatch.setattr(
        stream.StreamSource,
        "batches",
        lambda self, place, cursor: seen.append(place.worker) or whole(self, place, cursor),
    )
    source = make_source(pack_shards([20]))
    batch_keys(source, Place(), 0, range(5, 6), num_workers=4)
    assert seen == [1]
