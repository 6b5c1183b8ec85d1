"""The three data sets, made from a seed: tars, and loose files of the images.

IMG: JPEGs of 500 x 375, quality 90, 4:2:0: noise with the falling spectrum of photographs
(amplitude ~ 1/frequency^1.4), blended of two out of 32 textures each, about 70 kB, and a class.
SMALL: .npy files of 200 bytes, 18 float32. TOK: .npy files of 2,048 uint16.
"""

import io
import tarfile
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

from benchmarks.peers.job import Job
from benchmarks.peers.transforms import ARRAYS, LENGTHS
from lightning_shards.dataprep.tar_writer import write_shard

HEIGHT, WIDTH, QUALITY = 375, 500, 90
TEXTURES, SLOPE, CONTRAST = 32, 1.4, 55.0
CLASSES = 1000
VOCABULARY = 50_257

Sample = tuple[str, dict[str, bytes]]


def make_data(job: Job) -> dict[str, Any]:
    """Write what is not there yet; the mean size of a sample, and of all tars."""
    done = job.home / "done"
    if not done.exists():
        for number, path in enumerate(job.shards):
            samples = [(key, list(fields.items())) for key, fields in _samples(job, number)]
            write_shard(Path(path), samples)
        if job.is_images:
            _write_loose_files(job)
        done.touch()
    size = sum(Path(path).stat().st_size for path in job.shards)
    return {"tar_bytes": size, "bytes_per_sample": round(size / job.data.samples)}


def samples_of(job: Job) -> Iterator[Sample]:
    """All samples of the tars, in order: what converters of other formats are fed with."""
    for path in job.shards:
        with tarfile.open(path) as tar:
            for key, members in groupby(tar, lambda each: each.name.partition(".")[0]):
                yield key, {each.name.partition(".")[2]: _bytes_of(tar, each) for each in members}


def read_members(job: Job, limit: int) -> list[bytes]:
    """The main member of the first samples: the bytes that the floor transforms."""
    suffix = "jpg" if job.is_images else "npy"
    return [fields[suffix] for _, fields in islice(samples_of(job), limit)]


def _bytes_of(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None  # all members are files
    return file.read()


def _samples(job: Job, shard: int) -> Iterator[Sample]:
    per_shard, rest = divmod(job.data.samples, job.data.shards)
    first = shard * per_shard + min(shard, rest)
    numbers = range(first, first + per_shard + (shard < rest))
    rng = np.random.default_rng((1, shard))
    make = _images if job.is_images else _arrays
    for number, fields in zip(numbers, make(job, rng, len(numbers)), strict=True):
        yield f"{number:08d}", fields


def _arrays(job: Job, rng: np.random.Generator, count: int) -> Iterator[dict[str, bytes]]:
    length, dtype = LENGTHS[job.data.name], ARRAYS[job.data.name]
    for _ in range(count):
        is_tokens = dtype.kind == "u"
        values = rng.integers(VOCABULARY, size=length) if is_tokens else rng.random(length)
        file = io.BytesIO()
        np.save(file, values.astype(dtype))
        yield {"npy": file.getvalue()}


def _images(_: Job, rng: np.random.Generator, count: int) -> Iterator[dict[str, bytes]]:
    textures = _textures()
    for _ in range(count):
        one, two = rng.integers(TEXTURES, size=2)
        shift = [int(each) for each in rng.integers((HEIGHT, WIDTH))]
        moved = np.roll(textures[one], shift, axis=(0, 1))
        share = float(rng.uniform(0.2, 0.8))
        # blending lowers the contrast of what is not related by the root of the sum of squares
        gain = 1 / (share**2 + (1 - share) ** 2) ** 0.5
        pixels = cv2.addWeighted(moved, share * gain, textures[two], (1 - share) * gain, 0)
        pixels = cv2.add(pixels, (128.0,) * 4, dtype=cv2.CV_8U)
        jpeg = simplejpeg.encode_jpeg(pixels, quality=QUALITY, colorsubsampling="420")
        yield {"jpg": jpeg, "cls": str(rng.integers(CLASSES)).encode()}


def coloured_noise(rng: np.random.Generator, height: int, width: int) -> Any:
    """Noise whose amplitude falls with the frequency as in photographs; (height, width, 3)."""
    down, across = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    frequency = np.sqrt(down**2 + across**2)
    frequency[0, 0] = 1
    planes: list[Any] = []
    for _ in range(4):  # a luminance and three colours
        noise = np.fft.rfft2(rng.standard_normal((height, width))) / frequency**SLOPE
        plane = np.fft.irfft2(noise, s=(height, width))
        planes.append(plane / plane.std())
    colours = [planes[0] + 0.3 * colour for colour in planes[1:]]
    return CONTRAST * np.stack(colours, axis=-1)


def _textures() -> list[Any]:
    """Float32 of shape (height, width, 3) around 0."""
    rng = np.random.default_rng(0)
    return [coloured_noise(rng, HEIGHT, WIDTH).astype(np.float32) for _ in range(TEXTURES)]


def _write_loose_files(job: Job) -> None:
    for key, fields in samples_of(job):
        path = job.home / "files" / f"{int(fields['cls']):04d}" / f"{key}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fields["jpg"])
