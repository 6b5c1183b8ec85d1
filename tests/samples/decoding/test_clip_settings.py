"""Settings of clips that cannot be, and libraries that are missing; needs neither of them."""

import numpy as np
import pytest

from lightning_shards import DecodeAudioClip, DecodeVideoClip
from lightning_shards.errors import ConfigError
from lightning_shards.samples import clips


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DecodeAudioClip(seconds=0, sample_rate=8000), "would have 0 values"),
        (lambda: DecodeAudioClip(seconds=1e9, sample_rate=8000), "8000000000000 values"),
        (
            lambda: DecodeAudioClip(seconds=1, sample_rate=0),
            "sample_rate must be a whole number of at least 1, got 0",
        ),
        (lambda: DecodeAudioClip(seconds=1, sample_rate=8000.5), "sample_rate must be a whole"),
        (lambda: DecodeAudioClip(seconds=1, sample_rate=9, num_channels="2"), "num_channels must"),
        (lambda: DecodeAudioClip(seconds=float("inf"), sample_rate=9), "seconds must .* got inf"),
        (lambda: DecodeAudioClip(seconds="1", sample_rate=9), "seconds must .* got '1'"),
        (
            lambda: DecodeAudioClip(seconds=1, sample_rate=9, start_s=float("nan")),
            "start_s must be at least 0, or None, got nan",
        ),
        (lambda: DecodeVideoClip(num_frames=4.5), "num_frames must be a whole number"),
        (lambda: DecodeVideoClip(num_frames=1, stride=0.5), "stride must be a whole number"),
        (lambda: DecodeAudioClip(seconds=1, sample_rate=9, start_s=-1), "start_s must .* got -1"),
        (
            lambda: DecodeVideoClip(num_frames=0),
            "num_frames must .* at least 1, got 0",
        ),
        (
            lambda: DecodeVideoClip(num_frames=1, start=-1),
            "start must .* at least 0, got -1",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(make, message, monkeypatch):
    monkeypatch.setattr("lightning_shards.errors.find_spec", lambda name: name)
    with pytest.raises(ConfigError, match=message):
        make()


def test_without_torchcodec_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("lightning_shards.errors.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'lightning-shards\[media\]', and FFmpeg"):
        DecodeVideoClip(num_frames=1)


def test_a_library_that_cannot_be_loaded_is_told_with_what_it_needs(monkeypatch):
    def fail(name):
        raise OSError("libavcodec.so.59: cannot open shared object file")

    monkeypatch.setattr("lightning_shards.errors.find_spec", lambda name: name)
    monkeypatch.setattr(clips, "import_module", fail)
    clips._decoders.cache_clear()
    with pytest.raises(ConfigError, match=r"FFmpeg, and a build .* libavcodec\.so\.59"):
        DecodeAudioClip(seconds=1, sample_rate=8000)(b"", np.random.default_rng(0))
