"""Decoders of the user's own."""

import numpy as np
import pytest
from user_decoders import decode_wav

from lightning_shards import SplitConfig

EXPECTED = [[n, n + 1, n + 2] for n in range(4)]


@pytest.mark.parametrize("reader", ["indexed", "stream"])
@pytest.mark.parametrize(
    ("decode", "factor"),
    [
        ({"audio": decode_wav, "left": "user_decoders.decode_wav"}, 1),
        ({"audio": decode_wav, "left": {"class_path": "user_decoders.Scaled"}}, 2),
    ],
)
def test_a_field_is_decoded_by_it(make_module, write_tar, tmp_path, reader, decode, factor):
    wavs = [b"WAVE" + np.array(numbers, "<i2").tobytes() for numbers in EXPECTED]
    names = ("wav", "left.wav")
    members = [(f"{n}.{name}", wav) for n, wav in enumerate(wavs) for name in names]
    split = SplitConfig(
        str(write_tar(tmp_path / "0.tar", members)), sampling="sequential", reader=reader
    )
    fields = dict(zip(("audio", "left"), names, strict=True))
    (batch,) = make_module(split, fields=fields, decode=decode, batch_size=4).loader("train")
    assert batch["audio"].tolist() == EXPECTED
    assert batch["left"].tolist() == [[factor * x for x in row] for row in EXPECTED]
