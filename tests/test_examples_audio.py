"""The examples for sounds run, and learn; a decoder of theirs reads what a WAV file holds."""

import io
import re
import wave
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"
EXAMPLE, WHOLE = EXAMPLES / "audio.py", EXAMPLES / "audio_whole.py"


@pytest.fixture
def audio(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE.parents[1]))
    return import_module("examples.audio")


@pytest.mark.slow
@pytest.mark.ddp
@pytest.mark.parametrize("example", [EXAMPLE, WHOLE], ids=lambda path: path.stem)
def test_sounds_are_recognised(tmp_path, forked_programs, example):
    if example == WHOLE:
        pytest.importorskip("torchcodec.decoders", exc_type=(ImportError, OSError, RuntimeError))
    environment = {"HOME": str(tmp_path)}
    output, statuses = forked_programs.run([example], tmp_path, environment=environment)
    assert statuses == [0], output
    recognised = re.search(r"(?:instruments|recordings) recognised: (\d+)%", output)
    assert recognised is not None
    assert int(recognised[1]) > 75  # one in two by chance


def test_the_decoder_gives_each_channel_from_minus_one_to_one(audio):
    values = np.array([[-(2**15), 0, 2**14], [1, 2, 3]], "<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((2, 2, 8_000, 0, "NONE", ""))
        writer.writeframes(values.T.tobytes())
    decoded = audio.decode_wav(file.getvalue())
    assert decoded.dtype == torch.float32
    assert decoded.tolist() == (values / 2**15).tolist()


def test_clips_have_one_length_and_come_from_anywhere(audio):
    sound = torch.arange(audio.CLIP + 3.0)[None] + 1
    clips = [audio.random_clip(sound, np.random.default_rng(seed)) for seed in range(20)]
    assert {clip.shape for clip in clips} == {(1, audio.CLIP)}
    starts = {round(float(clip[0, 0] / (clip[0, 1] - clip[0, 0]))) for clip in clips}
    assert starts == {1, 2, 3, 4}


@pytest.mark.parametrize("example", [EXAMPLE, WHOLE], ids=lambda path: path.stem)
def test_it_is_short_and_begins_with_its_command(example):
    lines = example.read_text().splitlines()
    assert lines[0].startswith(f'"""python examples/{example.name}')
    assert len(lines) < 100
