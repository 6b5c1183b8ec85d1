"""The examples for sounds run, and learn; a decoder of theirs reads what a WAV file holds."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
EXAMPLE, WHOLE = EXAMPLES / "audio.py", EXAMPLES / "audio_whole.py"


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
