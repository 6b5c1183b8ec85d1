"""Transforms that decode a clip of a sound or a video, and no more of a video than it shows.

Each takes the bytes of a media file and gives a tensor of one shape, so that clips of files of any
length fit one tensor (of videos, if all pictures have one size). Put them in `transforms`; the
field is then not decoded before. No other module knows torchcodec, which decodes by FFmpeg.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lightning_shards.errors import ConfigError, require_at_least, require_library
from lightning_shards.samples.images import MAX_PIXELS
from lightning_shards.samples.tensors import load_torch

if TYPE_CHECKING:
    import torch


_MAX_VALUES = 2**28
"""Values of a clip of sound, which then has 1 GiB."""


@dataclass(frozen=True, kw_only=True)
class DecodeAudioClip:
    """Decodes a clip of a sound, or all of it, to float32 of shape (channels, samples), -1 to 1.

    Whole sounds have any number of samples: ``PadCollate([FIELD], dim=-1)`` makes batches of them,
    with their lengths.

    The file is decoded from its beginning up to the end of the clip; memory is taken for the clip
    alone. What a file is too short for is zeros; a clip behind its end is an error. The length of a
    file is that in its header; of raw AAC (ADTS), and of MP3 of varying bit rate without a header,
    FFmpeg gives an estimate.

    Attributes:
        seconds: Length of the clip; None: all from `start_s` on, or from the beginning.
        sample_rate: Samples a second; files of other rates are resampled.
        num_channels: Channels of the clip; files of other numbers are mixed.
        start_s: Where the clip begins in the file; None: drawn for each sample in each epoch,
            unless `seconds` is None.
    """

    seconds: float | None
    sample_rate: int
    num_channels: int = 1
    start_s: float | None = None
    takes_bytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_library("decoding a clip", "torchcodec", "torchcodec", "media", ", and FFmpeg")
        require_at_least("sample_rate", self.sample_rate, 1)
        require_at_least("num_channels", self.num_channels, 1)
        num_values = self._num_samples * self.num_channels
        if not 1 <= num_values <= _MAX_VALUES:
            raise ConfigError(
                f"a clip of seconds={self.seconds} would have {num_values} values; it must have 1 "
                f"to {_MAX_VALUES}"
            )
        if self.start_s is not None and not self.start_s >= 0:
            raise ConfigError(f"start_s must be at least 0, or None, got {self.start_s!r}")

    @property
    def _num_samples(self) -> int:
        """Of each channel of a clip; at most, of a whole sound."""
        if self.seconds is None:
            return _MAX_VALUES // self.num_channels
        return round(self.seconds * self.sample_rate)

    def __call__(self, data: bytes, rng: np.random.Generator) -> "torch.Tensor":
        """The clip of one file."""
        settings = {"sample_rate": self.sample_rate, "num_channels": self.num_channels}
        decoder = _decoders().AudioDecoder(data, **settings)
        begin = decoder.metadata.begin_stream_seconds_from_header or 0.0
        start = self.start_s or 0.0
        if self.start_s is None and self.seconds is not None:
            start = float(rng.uniform(0, max(_length_s(decoder.metadata) - self.seconds, 0)))
        first, seconds = begin + start, self._num_samples / self.sample_rate
        found = decoder.get_samples_played_in_range(first, first + seconds).data
        missing = self._num_samples - found.shape[1]
        if self.seconds is not None:
            return load_torch().nn.functional.pad(found, (0, missing))  # less than 0 cuts
        if missing <= 0:
            raise ValueError(f"it has {self._num_samples} samples or more; set seconds")
        return found


@dataclass(frozen=True, kw_only=True)
class DecodeVideoClip:
    """Decodes some frames of a video to uint8 of shape (frames, 3, height, width).

    The other frames are decoded only where these depend on them. The last frame stands for those
    that a file is too short for.

    Attributes:
        num_frames: Frames of the clip.
        stride: Frames of the file from one frame of the clip to the next one.
        start: Number of the first frame in the file; None: drawn for each sample in each epoch.
    """

    num_frames: int
    stride: int = 1
    start: int | None = None
    takes_bytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_library("decoding a clip", "torchcodec", "torchcodec", "media", ", and FFmpeg")
        require_at_least("num_frames", self.num_frames, 1)
        require_at_least("stride", self.stride, 1)
        if self.start is not None:
            require_at_least("start", self.start, 0)

    def __call__(self, data: bytes, rng: np.random.Generator) -> "torch.Tensor":
        """The clip of one file."""
        decoder = _decoders().VideoDecoder(data)
        height, width = decoder.metadata.height or 0, decoder.metadata.width or 0
        if self.num_frames * height * width > MAX_PIXELS:
            raise ValueError(
                f"{self.num_frames} frames of {width} x {height} pixels are more than {MAX_PIXELS}"
            )
        last = len(decoder) - 1
        start = self.start
        if start is None:
            length = (self.num_frames - 1) * self.stride
            start = int(rng.integers(max(last - length, 0) + 1))
        frames = start + np.arange(self.num_frames) * self.stride
        return decoder.get_frames_at(np.minimum(frames, last).tolist()).data


def _length_s(metadata: Any) -> float:
    """Seconds of a sound, by what torchcodec tells of it; Matroska has those of the file alone.

    Raises:
        ValueError: The file does not tell.
    """
    if metadata.duration_seconds_from_header is not None:
        return metadata.duration_seconds_from_header
    if metadata.duration_seconds is None:
        raise ValueError(
            "it does not tell how long it is, as no file does that was written to a pipe or "
            "recorded by a browser, or it is empty, so that no part can be drawn; write it anew by "
            "'ffmpeg -i OLD -c copy NEW', or set start_s"
        )
    # a file's time begins at 0, wherever its sound does
    return metadata.duration_seconds - (metadata.begin_stream_seconds_from_header or 0.0)


@cache
def _decoders() -> Any:
    try:
        return import_module("torchcodec.decoders")  # an extra
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(
            "torchcodec cannot be loaded: it needs the libraries of FFmpeg, and a build for the "
            f"torch that is installed (for the CPU, or for its CUDA): {str(error)[-300:]}"
        ) from error
