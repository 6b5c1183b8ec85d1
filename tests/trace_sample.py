"""The way of one sample through the package, from the loader's `next` to its batch.

`python -m tests.trace_sample` prints it. The sample is a JPEG that is cropped (a large field, read
alone) and a class (a small field, read ahead), of the indexed reader in the process itself. It is
the second one of a loader: what is done once for many samples, as opening shards and looking
members up, lies in the first.

A **call** crosses into another module of the package. A **move** is a pair of modules between which
there is such a call: who follows the sample opens the one file coming from the other.

What is left apart, and why: `samples.member_bytes` is what decoders of whole batches are given, and
these lie below the readers; `samples.arena` is shared with the workers; digests are added up in the
loader; clock and watchdog are told of each step.
"""

import io
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import numpy as np
from PIL import Image

from lightning_shards import DecodeRandomResizedCrop, LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.readers.read_ahead import ReadBuffer

PACKAGE = "lightning_shards."


class Call(NamedTuple):
    caller: str
    module: str
    function: str


def trace_sample(folder: Path) -> list[Call]:
    """The calls of one sample, whose shard is made in this folder."""
    url = str(folder / "shard.tar")
    with tarfile.open(url, "w") as tar:
        for number in range(4):
            for suffix, content in (("jpg", _jpeg()), ("cls", b"7")):
                info = tarfile.TarInfo(f"{number}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    data = ShardDataModule(
        train=SplitConfig(url, sampling="shuffled"),
        fields={"image": "jpg", "label": "cls"},
        transforms={"image": DecodeRandomResizedCrop(size=32)},
        batch_size=1,
        num_workers=0,
        loader=LoaderConfig(cache_dir=str(folder / "cache")),
    )
    batches = iter(data.loader("train"))
    next(batches)
    return _calls(lambda: next(batches))


def moves_of(calls: list[Call]) -> list[tuple[str, str]]:
    """Caller and module of each move, in the order of their first calls."""
    return list(dict.fromkeys((call.caller, call.module) for call in calls))


def _jpeg() -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (128, 128, 3), np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


def _calls(step: Callable[[], object]) -> list[Call]:
    calls: list[Call] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and _is_ours(frame):
            outer = frame.f_back
            while outer and not _is_ours(outer):
                outer = outer.f_back
            caller, module = _module(outer) if outer else "", _module(frame)
            if caller != module:
                calls.append(Call(caller, module, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return calls


def _is_ours(frame: FrameType) -> bool:
    is_generated = frame.f_code.co_filename.startswith("<")  # as the methods of dataclasses are
    return frame.f_globals.get("__name__", "").startswith(PACKAGE) and not is_generated


def _module(frame: FrameType) -> str:
    return frame.f_globals["__name__"].removeprefix(PACKAGE)


def one_batch_read_ahead() -> Callable[..., None]:
    """`ReadBuffer.__init__` for a buffer that takes no more than one batch: each one is read."""
    plain = ReadBuffer.__init__
    return lambda self, **_given: plain(self, limit=1, most_bytes=lambda: 1)


def main() -> None:
    """Print the way, each call in a line."""
    ReadBuffer.__init__ = one_batch_read_ahead()
    with tempfile.TemporaryDirectory() as folder:
        calls = trace_sample(Path(folder))
    moves = moves_of(calls)
    called, entered = Counter(call.module for call in calls), Counter(to for _, to in moves)
    lines = [
        f"{call.caller or '(the user)':24} -> {call.module:24} {call.function}" for call in calls
    ]
    lines.append(f"{len(moves)} moves between {len(called)} modules, {len(calls)} calls")
    for what, counts in (("entered from several modules", entered), ("called again", called)):
        lines.append(f"{what}: { ({name: count for name, count in counts.items() if count > 1}) }")
    print("\n".join(lines))  # noqa: T201


if __name__ == "__main__":
    main()
