"""Decoders of the user's own."""

import numpy as np
import pytest
from user_decoders import decode_wav

from lightning_shards import SplitConfig

EXPECTED = [[n, n + 1, n + 2] for n in range(4)]


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_fields_are_decoded_by_them(make_module, write_tar, tmp_path, reader):
    wavs = [b"WAVE" + np.array(numbers, "<i2").tobytes() for numbers in EXPECTED]
    members = [(f"{number}.wav", wav) for number, wav in enumerate(wavs)]
    url = str(write_tar(tmp_path / "0.tar", members))
    (batch,) = make_module(
        SplitConfig(url, sampling="sequential", reader=reader),
        fields={"audio": "wav", "named": "wav", "louder": "wav"},
        decode={
            "audio": decode_wav,
            "named": "user_decoders.decode_wav",
            "louder": {"class_path": "user_decoders.Scaled"},
        },
        batch_size=4,
    ).loader("train")
    assert batch["audio"].tolist() == batch["named"].tolist() == EXPECTED
    assert batch["louder"].tolist() == [[2 * x for x in row] for row in EXPECTED]
