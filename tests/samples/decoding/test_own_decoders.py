"""Decoders of the user's own."""

import numpy as np
import pytest
from user_decoders import decode_wav

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig

READERS = pytest.mark.parametrize("reader", ["indexed", "stream"])
SAMPLES = 8


def wav(number):
    return b"WAVE" + np.arange(number, number + 3, dtype="<i2").tobytes()


@pytest.fixture
def load(tmp_path, write_tar):
    """The loader of a tar in file order, of four samples a batch."""

    def loader(decode, reader):
        members = [(f"{n}.{s}", wav(n)) for n in range(SAMPLES) for s in ("wav", "left.wav")]
        url = str(write_tar(tmp_path / "0.tar", members))
        data_module = ShardDataModule(
            train=SplitConfig(url, sampling="sequential", reader=reader),
            decode=decode,
            fields={"audio": "wav", "left": "left.wav"},
            batch_size=4,
            num_workers=0,
            loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
        )
        return data_module.loader("train")

    return loader


def batches_of(loader):
    return [
        {name: value.tolist() for name, value in batch.items() if name in {"audio", "left"}}
        for batch in loader
    ]


EXPECTED = [[[n, n + 1, n + 2] for n in range(first, first + 4)] for first in (0, 4)]


@READERS
@pytest.mark.parametrize(
    ("decode", "factor"),
    [
        ({"audio": decode_wav, "left": "user_decoders.decode_wav"}, 1),
        ({"audio": decode_wav, "left": {"class_path": "user_decoders.Scaled"}}, 2),
    ],
)
def test_a_field_is_decoded_by_it(load, reader, decode, factor):
    for number, batch in enumerate(batches_of(load(decode, reader))):
        assert batch["audio"] == EXPECTED[number]
        assert batch["left"] == [[factor * x for x in row] for row in EXPECTED[number]]
