"""Samples, and a writer of them, for the tests of what is written."""

from pathlib import Path

import pytest

from lightning_shards.dataprep.writer import ShardWriter

SAMPLES = [
    {"__key__": f"class.{number % 3}/{number:04d}", "jpg": bytes([number]) * number, "cls": "ä"}
    for number in range(20)
]


@pytest.fixture
def write(tmp_path):
    def call(samples=SAMPLES, folder="out", **options):
        folder = tmp_path / folder if isinstance(folder, str) else folder
        options.setdefault("max_samples", 6)
        with ShardWriter(folder, cache_dir=tmp_path / "cache", **options) as writer:
            for sample in samples:
                writer.write(sample)
        return writer

    return call


def tars(folder):
    return sorted(Path(folder).glob("*.tar"))
