"""Decoders of the user's own, with errors that say which sample is bad."""

import numpy as np
import pytest
from user_decoders import decode_wav

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import SampleError

READERS = pytest.mark.parametrize("reader", ["indexed", "stream"])
SAMPLES = 8


def wav(number, size=3):
    return b"WAVE" + np.arange(number, number + size, dtype="<i2").tobytes()


@pytest.fixture
def load(tmp_path, write_tar):
    """The loader of a tar in file order, of four samples a batch."""

    def loader(
        decode, reader="indexed", data=wav, num_workers=0, max_bad=0, steps=None, **settings
    ):
        members = [(f"{n}.{s}", data(n)) for n in range(SAMPLES) for s in ("wav", "left.wav")]
        url = str(write_tar(tmp_path / "0.tar", members))
        bad = {"on_bad_sample": "substitute", "max_bad": max_bad} if max_bad else {}
        data_module = ShardDataModule(
            train=SplitConfig(url, sampling="sequential", reader=reader, **bad),
            decode=decode,
            **{"fields": {"audio": "wav", "left": "left.wav"}} | (steps or {}),
            batch_size=4,
            num_workers=num_workers,
            loader=LoaderConfig(cache_dir=str(tmp_path / "cache"), **settings),
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


def spoilt(number):
    return b"none" if number == 6 else wav(number)


@READERS
def test_what_it_raises_names_sample_member_and_decoder(load, reader):
    with pytest.raises(SampleError) as caught:
        batches_of(load({"audio": decode_wav, "left": decode_wav}, reader, spoilt))
    assert str(caught.value).replace(
        str(caught.value).split(" of ")[1].split(": ")[0], "0.tar"
    ) == (
        "sample '6' of 0.tar: member 'wav' (4 bytes) cannot be decoded as "
        "'user_decoders.decode_wav' for field 'audio': LookupError: no head; repair the shard, or "
        "that function"
    )
    assert isinstance(caught.value.__cause__, LookupError)
    loader = load({"audio": decode_wav, "left": decode_wav}, reader, spoilt, max_bad=1)
    assert [batch["__weight__"].sum().item() for batch in loader] == [4, 3]
