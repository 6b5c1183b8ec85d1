"""Reencoding of images to a smaller size before they are packed, as a function of one sample.

Besides `samples.decoding` only this module knows Pillow: it encodes images.
"""

from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from typing import Any

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.samples.decoding.images import decode_pil, require_backend
from lightning_shards.samples.decoding.orientation import orientation_of, turned_upright

_FORMATS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}
_MAX_QUALITY = 100
_DEFAULT_QUALITY = 90


@dataclass(frozen=True, kw_only=True)
class Reencode:
    """Resizes the images of a sample and stores them in their own format.

    The shorter side becomes `resize` pixels. Smaller images keep their size, and a file that needs
    no change of size or quality stays the same byte for byte. Images are turned upright by their
    EXIF orientation, which is then removed, like all other metadata. Members whose field is not
    one of JPEG, PNG or WebP are not touched.

    Attributes:
        resize: Most pixels of the shorter side; None keeps the size.
        quality: Quality of JPEG and WebP, 1 to 100; None: 90 if an image is resized.
    """

    resize: int | None = None
    quality: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers out of their range, and a missing library."""
        if self.resize is not None and self.resize < 1:
            raise ConfigError(f"resize must be at least 1 pixel, got {self.resize}")
        if self.quality is not None and not 1 <= self.quality <= _MAX_QUALITY:
            raise ConfigError(f"quality must be from 1 to {_MAX_QUALITY}, got {self.quality}")
        require_backend("pillow")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that decide the bytes, with the version of Pillow."""
        return {"resize": self.resize, "quality": self.quality, "pillow": version("pillow")}

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The sample with smaller images.

        Raises:
            SampleError: An image cannot be read.
        """
        smaller = dict(sample)
        for name, data in sample.items():
            kind = _FORMATS.get(name.rpartition(".")[2])
            if kind:
                smaller[name] = self._smaller(data, kind, f"{sample['__key__']}.{name}")
        return smaller

    def _smaller(self, data: bytes, kind: str, name: str) -> bytes:
        """The bytes of the file that is stored for one image."""
        from PIL import Image

        try:
            image = decode_pil(data)
        except (OSError, ValueError, SyntaxError) as error:  # a broken PNG gives SyntaxError
            raise SampleError(f"{name} is no image that can be read: {error}") from error
        factor = 1.0 if self.resize is None else min(1.0, self.resize / min(image.size))
        if factor == 1 and (self.quality is None or kind == "PNG"):
            return data
        image = turned_upright(image, orientation_of(image))
        if (kind == "JPEG" and image.mode not in ("RGB", "L")) or image.mode in ("P", "1"):
            has_alpha = kind != "JPEG" and "transparency" in image.info
            image = image.convert("RGBA" if has_alpha else "RGB")  # palettes cannot be averaged
        width, height = (max(1, round(side * factor)) for side in image.size)
        if factor < 1:
            image = image.resize((width, height), Image.Resampling.LANCZOS)
        file = BytesIO()
        options = {} if kind == "PNG" else {"quality": self.quality or _DEFAULT_QUALITY}
        image.save(file, kind, **options)
        return file.getvalue()
