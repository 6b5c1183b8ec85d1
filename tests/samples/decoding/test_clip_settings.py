"""Settings of clips that cannot be, and libraries that are missing; needs neither of them."""

import numpy as np
import pytest

from lightning_shards import DecodeAudioClip, DecodeVideoClip
from lightning_shards.errors import ConfigError
from lightning_shards.samples import clips


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (DecodeAudioClip, {"seconds": 0}, "would have 0 values"),
        (DecodeAudioClip, {"seconds": 1e9}, "8000000000000 values"),
        (DecodeAudioClip, {"sample_rate": 0}, "sample_rate must be a whole number of at least 1"),
        (DecodeAudioClip, {"start_s": -1}, "start_s must .* got -1"),
        (DecodeVideoClip, {"stride": 0}, "stride must .* at least 1, got 0"),
        (DecodeVideoClip, {"start": -1}, "start must .* at least 0, got -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(kind, settings, message, monkeypatch):
    monkeypatch.setattr("lightning_shards.errors.find_spec", lambda name: name)
    sound = {"seconds": 1, "sample_rate": 8000} if kind is DecodeAudioClip else {"num_frames": 1}
    with pytest.raises(ConfigError, match=message):
        kind(**sound | settings)


def test_a_library_that_cannot_be_loaded_is_told_with_what_it_needs(monkeypatch):
    def fail(name):
        raise OSError("libavcodec.so.59: cannot open shared object file")

    monkeypatch.setattr("lightning_shards.errors.find_spec", lambda name: name)
    monkeypatch.setattr(clips, "import_module", fail)
    clips._decoders.cache_clear()
    with pytest.raises(ConfigError, match=r"FFmpeg, and a build .* libavcodec\.so\.59"):
        DecodeAudioClip(seconds=1, sample_rate=8000)(b"", np.random.default_rng(0))
