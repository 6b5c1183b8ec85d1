"""Transforms that decode and crop in one step, and decode no more of an image than they show.

Each takes the bytes of an image file and gives uint8 of shape (3, size, size), or (1, size, size)
in gray, so that images of any size fit one tensor. Put them in `transforms`; the field is then not
decoded before. Operations on floats, such as a normalisation, belong in `device_transforms`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError
from lightning_shards.samples.images import (
    Backend,
    Box,
    NotForTurboError,
    open_image,
    require_backend,
)

_TRIES = 10


@dataclass(frozen=True, kw_only=True)
class _Crop:
    """The settings that all crops share.

    Attributes:
        size: Height and width of the result, in pixels.
        backend: `pillow`, or the faster `turbo`, whose pixels differ (see `samples.images`).
        gray: Whether one channel is wanted instead of three.
        orient: Whether images are turned as their EXIF orientation says.
    """

    size: int
    backend: Backend = "pillow"
    gray: bool = False
    orient: bool = False
    takes_bytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"size must be at least 1 pixel, got {self.size}")
        require_backend(self.backend)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of every result."""
        return (1 if self.gray else 3, self.size, self.size)

    def _cut(self, data: bytes, choose: Callable[[int, int], Box]) -> NDArray[np.uint8]:
        """The part that is chosen, given width and height of the image; see `OpenImage.part`."""
        try:
            return self._cut_by(self.backend, data, choose)
        except NotForTurboError:
            return self._cut_by("pillow", data, choose)

    def _cut_by(
        self, backend: Backend, data: bytes, choose: Callable[[int, int], Box]
    ) -> NDArray[np.uint8]:
        image = open_image(data, backend=backend, is_gray=self.gray, is_oriented=self.orient)
        return image.part(choose(image.width, image.height), self.size)


@dataclass(frozen=True, kw_only=True)
class DecodeRandomResizedCrop(_Crop):
    """A random part of the image, resized, and flipped left to right half of the time.

    The part has a uniformly drawn share of the image's area and a log-uniformly drawn ratio of
    width to height. If it does not fit, it is drawn again, up to ten times; after that it is the
    largest central part with an allowed ratio. See Szegedy et al., "Going deeper with convolutions"
    (2014), section 6; the details are those of torchvision's `RandomResizedCrop`.

    Attributes:
        scale: Least and greatest share of the area.
        ratio: Least and greatest ratio of width to height.
        flip: Probability of flipping it left to right.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (least, greatest) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < least <= greatest:
                raise ConfigError(
                    f"{name} must be two growing numbers above 0, got {least, greatest}"
                )
        if not 0 <= self.flip <= 1:
            raise ConfigError(f"flip must be a probability, got {self.flip}")

    def __call__(self, data: bytes, rng: np.random.Generator) -> torch.Tensor:
        """The pixels, uint8 of shape (3, size, size)."""
        pixels = self._cut(data, lambda width, height: self._box(width, height, rng))
        if rng.random() < self.flip:
            pixels = np.ascontiguousarray(pixels[:, :, ::-1])
        return torch.as_tensor(pixels)

    def _box(self, width: int, height: int, rng: np.random.Generator) -> Box:
        for _ in range(_TRIES):
            area = width * height * rng.uniform(*self.scale)
            ratio = exp(rng.uniform(log(self.ratio[0]), log(self.ratio[1])))
            wide, high = round(sqrt(area * ratio)), round(sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                left = int(rng.integers(width - wide + 1))
                return Box(left, int(rng.integers(height - high + 1)), wide, high)
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        wide, high = min(width, round(height * ratio)), min(height, round(width / ratio))
        return Box((width - wide) // 2, (height - high) // 2, max(wide, 1), max(high, 1))


@dataclass(frozen=True, kw_only=True)
class DecodeCenterCrop(_Crop):
    """The central square of an image whose shorter side was resized to `resize`, for evaluation.

    Attributes:
        resize: Pixels of the shorter side, at least `size`; if equal, the whole side is kept.
    """

    resize: int
    deterministic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resize < self.size:
            raise ConfigError(f"resize must be at least size={self.size}, got {self.resize}")

    def __call__(self, data: bytes) -> torch.Tensor:
        """The pixels, uint8 of shape (3, size, size)."""
        return torch.as_tensor(self._cut(data, self._box))

    def _box(self, width: int, height: int) -> Box:
        side = max(round(min(width, height) * self.size / self.resize), 1)
        return Box((width - side) // 2, (height - side) // 2, side, side)


@dataclass(frozen=True, kw_only=True)
class DecodeResize(_Crop):
    """The whole image, resized to a square whatever its ratio is."""

    deterministic: ClassVar[bool] = True

    def __call__(self, data: bytes) -> torch.Tensor:
        """The pixels, uint8 of shape (3, size, size)."""
        return torch.as_tensor(self._cut(data, lambda width, height: Box(0, 0, width, height)))
