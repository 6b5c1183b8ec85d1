"""Clips of sounds and videos: what a clip shows, and that any number of workers draws the same."""

import io
import shutil
import subprocess
import wave
from itertools import pairwise

import numpy as np
import pytest
import torch

from lightning_shards import DecodeAudioClip, DecodeVideoClip
from lightning_shards.samples import clips

try:
    import torchcodec.decoders
    from torchcodec.encoders import VideoEncoder
except (ImportError, OSError, RuntimeError) as error:
    pytest.skip(f"the extra `media`, or FFmpeg, is missing: {error}", allow_module_level=True)

RATE = 8000
FRAMES = 20


def wav(seconds=2.0, first=0):
    """A ramp, of which every sample tells its number."""
    return wav_of(first + np.arange(int(seconds * RATE)))


def wav_of(numbers):
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, RATE, 0, "NONE", ""))
        writer.writeframes(numbers.astype("<i2").tobytes())
    return file.getvalue()


def video(tmp_path):
    """Gray frames of 32 x 48 pixels, each brighter than the one before."""
    gray = torch.arange(FRAMES, dtype=torch.uint8) * 12
    frames = gray[:, None, None, None].expand(FRAMES, 3, 32, 48).contiguous()
    path = tmp_path / "video.mp4"
    VideoEncoder(frames, frame_rate=10).to_file(path)
    return path.read_bytes()


def numbers_of(clip):
    return (clip[0] * 2**15).round().int().tolist()


def rng():
    return np.random.default_rng(3)


def test_a_clip_of_a_sound_is_the_part_that_was_asked_for():
    clip = DecodeAudioClip(seconds=0.01, sample_rate=RATE, start_s=0.5)(wav(), rng())
    assert (clip.dtype, clip.shape) == (torch.float32, (1, 80))
    assert numbers_of(clip) == list(range(4000, 4080))


def test_a_clip_is_drawn_from_the_whole_sound():
    decode, draws = DecodeAudioClip(seconds=0.5, sample_rate=RATE), rng()
    starts = [numbers_of(decode(wav(), draws))[0] for _ in range(40)]
    assert 0 <= min(starts) < 2000
    assert 10_000 < max(starts) <= 12_000
    assert numbers_of(decode(wav(), rng())) == numbers_of(decode(wav(), rng()))


CODECS = {"webm": "libopus", "opus": "libopus", "mkv": "flac", "mp3": "libmp3lame", "flac": "flac"}
FORMATS = {"mkv": "matroska"}


@pytest.fixture
def encode(tmp_path):
    """What ffmpeg makes of a sound or a video, written to a file, or to a pipe."""
    program = shutil.which("ffmpeg")
    if program is None:
        pytest.skip("the program ffmpeg is missing")

    def encode(source, kind, *, piped=False):
        before, after = tmp_path / "source", tmp_path / f"made.{kind}"
        before.write_bytes(source)
        command = [program, "-v", "error", "-y", "-i", before, "-c", CODECS[kind]]
        command += ["-f", FORMATS.get(kind, kind), "-" if piped else after]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300)
        return done.stdout if piped else after.read_bytes()

    return encode


def rising():
    """A tone of two seconds that grows with its time, which lossy codecs keep."""
    time = np.arange(2 * RATE) / RATE
    return wav_of(np.sin(2 * np.pi * 400 * time) * time * 2**13)


@pytest.mark.parametrize("kind", ["webm", "flac"])
def test_a_sound_of_unknown_length_is_an_error_unless_its_start_is_given(encode, kind):
    data = encode(rising(), kind, piped=True)
    with pytest.raises(ValueError, match=r"does not tell how long it is.*-c copy.*start_s"):
        DecodeAudioClip(seconds=0.5, sample_rate=RATE)(data, rng())
    clip = DecodeAudioClip(seconds=0.5, sample_rate=RATE, start_s=1)(data, rng())
    assert float(clip.abs().max()) == pytest.approx(0.375, abs=0.05)


@pytest.mark.parametrize("kind", ["opus", "mkv", "mp3"])
def test_a_clip_from_the_beginning_is_whole_whatever_its_container(encode, kind):
    data = encode(wav_of(np.sin(np.arange(3 * RATE) ** 1.2) * 2**14), kind)
    clip = DecodeAudioClip(seconds=1, sample_rate=2 * RATE, start_s=0)(data, rng())
    whole = torchcodec.decoders.AudioDecoder(data, sample_rate=2 * RATE).get_all_samples().data
    assert torch.equal(clip, whole[:, : 2 * RATE])


@pytest.mark.parametrize(("start_s", "first"), [(None, 0), (0.5, 4000)])
def test_whole_sounds_have_their_own_length(start_s, first):
    decode = DecodeAudioClip(seconds=None, sample_rate=RATE, start_s=start_s)
    for seconds in (0.75, 2.0):
        assert numbers_of(decode(wav(seconds), rng())) == list(range(first, int(seconds * RATE)))


def brightness(clip):
    return clip.float().mean((1, 2, 3)).tolist()


@pytest.mark.parametrize(("stride", "start"), [(1, 0), (3, 4), (1, None), (4, None)])
def test_a_clip_of_a_video_has_the_frames_that_were_asked_for(tmp_path, stride, start):
    clip = DecodeVideoClip(num_frames=4, stride=stride, start=start)(video(tmp_path), rng())
    assert (clip.dtype, clip.shape) == (torch.uint8, (4, 3, 32, 48))
    steps = [after - before for before, after in pairwise(brightness(clip))]
    assert steps == pytest.approx([12 * stride] * 3, abs=3)
    if start is not None:
        assert brightness(clip)[0] == pytest.approx(12 * start, abs=3)


def test_the_last_frame_stands_for_those_that_are_missing(tmp_path):
    clip = DecodeVideoClip(num_frames=3, stride=FRAMES)(video(tmp_path), rng())
    assert brightness(clip)[1:] == pytest.approx([12 * (FRAMES - 1)] * 2, abs=3)


def test_more_pixels_than_an_image_may_have_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(clips, "MAX_PIXELS", 4 * 32 * 48 - 1)
    with pytest.raises(ValueError, match="4 frames of 48 x 32 pixels are more than 6143"):
        DecodeVideoClip(num_frames=4)(video(tmp_path), rng())
