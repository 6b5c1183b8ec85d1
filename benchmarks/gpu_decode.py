"""python benchmarks/gpu_decode.py [--seconds 10]: JPEGs decoded, cropped and resized on the device.

Workers would send bytes and crop boxes, which are drawn by the sample's own generator, and the
device would do the rest. Where there is no CUDA GPU, or no torchvision that decodes on it, the CPU
takes its place, so that this program is known to work before a GPU is at hand.

The first part prints rates, differences of pixels between device and CPU, whether the same bytes
give the same bits twice, and how often decode_jpeg overwrites memory that queued kernels still read
(https://github.com/pytorch/vision/pull/9606): with `synchronize` before it must be 0. The second
part trains a small network on the same JPEGs by this package, webdataset and torch's DataLoader.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any

import numpy as np
import simplejpeg
import torch
import webdataset as wds
from torch import nn
from torch.utils.data import DataLoader, Dataset

import lightning_shards as ls

try:
    from torchvision.io import ImageReadMode, decode_jpeg
except (ImportError, RuntimeError):  # that of PyPI is built for CUDA
    decode_jpeg = None

ON_GPU = torch.cuda.is_available() and decode_jpeg is not None
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
NUM_IMAGES, HEIGHT, WIDTH, SIZE, BATCH = (4096 if ON_GPU else 256), 375, 500, 224, 64
CROP = ls.DecodeRandomResizedCrop(size=SIZE, flip=0.0)
Boxes = list[tuple[int, int, int, int]]


def jpeg_of(number: int) -> bytes:
    """A photograph-like picture: smooth shapes and noise."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = (0.01 * x + number, 0.02 * y + number, 0.015 * (x + y))
    noise = np.random.default_rng(number).normal(0, 14, (HEIGHT, WIDTH, 3))
    pixels = 127 + 90 * np.stack([np.sin(wave) for wave in waves], axis=2) + noise
    return simplejpeg.encode_jpeg(pixels.clip(0, 255).astype(np.uint8), quality=85)


def box_of(data: bytes, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, width and height of the part that `DecodeRandomResizedCrop` would draw."""
    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    box = CROP._box(width, height, rng)  # noqa: SLF001 - what it draws is compared
    return box.left, box.top, box.width, box.height


def decoded(files: list[bytes], device: torch.device) -> list[torch.Tensor]:
    """The pixels, uint8 (3, height, width) each."""
    if device.type == "cpu":
        arrays = (simplejpeg.decode_jpeg(data, "RGB") for data in files)
        return [torch.from_numpy(array).permute(2, 0, 1) for array in arrays]
    torch.cuda.current_stream().synchronize()  # nvJPEG writes before queued kernels have read
    return decode_jpeg(list(map(_as_tensor, files)), mode=ImageReadMode.RGB, device=device)


def cropped(images: list[torch.Tensor], boxes: Boxes) -> torch.Tensor:
    """The parts, uint8 (batch, 3, SIZE, SIZE)."""
    parts = (
        image[None, :, top : top + height, left : left + width].float()
        for image, (left, top, width, height) in zip(images, boxes, strict=True)
    )
    resize = nn.functional.interpolate
    resized = [resize(part, (SIZE, SIZE), mode="bilinear", antialias=True) for part in parts]
    return torch.cat(resized).round().clamp(0, 255).to(torch.uint8)


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def timed(name: str, act: Callable[[], object], images: int) -> None:
    """Print the images a second of the second call."""
    act()
    _synchronize()
    begun = time.perf_counter()
    act()
    _synchronize()
    print(f"{name:44s} {images / (time.perf_counter() - begun):9.0f} images/s", flush=True)


def rates(files: list[bytes], boxes: Boxes) -> None:
    """One core of the CPU, the device by batches, and the whole way."""
    few = files[:128]
    timed("CPU, one thread", lambda: decoded(few, torch.device("cpu")), len(few))
    for size in (32, 64, 128, 256):
        parts = [files[at : at + size] for at in range(0, 512, size)]
        images = sum(map(len, parts))
        timed(
            f"device, batches of {size}",
            lambda parts=parts: [decoded(each, DEVICE) for each in parts if each],
            images,
        )
    timed(
        "device, decode, crop and resize",
        lambda: cropped(decoded(few, DEVICE), boxes[: len(few)]),
        len(few),
    )


def differences(files: list[bytes], boxes: Boxes) -> None:
    """Pixels of the device against those of the CPU, and against themselves."""
    cpu, once, twice = (
        cropped(decoded(files[:64], device), boxes[:64]).cpu().int()
        for device in (torch.device("cpu"), DEVICE, DEVICE)
    )
    gap = (cpu - once).abs().float()
    print(f"device against CPU: largest {int(gap.max())}, mean {gap.mean():.4f} of 255")
    print(f"the same bits twice: {torch.equal(once, twice)}", flush=True)


def hazard(files: list[bytes], *, synchronized: bool) -> int:
    """In how many of 100 tries memory was overwritten that a queued kernel had still to read."""
    overwritten = 0
    given = list(map(_as_tensor, files[:16]))
    for _ in range(100):
        images = [
            torch.full((3, HEIGHT, WIDTH), 7, dtype=torch.uint8, device=DEVICE) for _ in given
        ]
        torch.cuda.synchronize()
        torch.cuda._sleep(100_000_000)  # noqa: SLF001 - as in the report
        sums = [image.long().sum() for image in images]
        del images
        if synchronized:
            torch.cuda.current_stream().synchronize()
        decode_jpeg(given, mode=ImageReadMode.RGB, device=DEVICE)
        torch.cuda.synchronize()
        overwritten += any(int(total) != 7 * 3 * HEIGHT * WIDTH for total in sums)
    return overwritten


def beside_a_model(files: list[bytes]) -> None:
    """Products of matrices alone, and with a batch that is decoded before them."""
    matrix = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)

    def step_s(batch: list[bytes]) -> float:
        _synchronize()
        begun = time.perf_counter()
        for _ in range(5):
            if batch:
                decoded(batch, DEVICE)
            for _ in range(50):
                matrix @ matrix
        _synchronize()
        return (time.perf_counter() - begun) / 5

    step_s([])
    alone, beside = step_s([]), step_s(files[:64])
    print(f"a step alone {1e3 * alone:.1f} ms, with a batch of 64 decoded {1e3 * beside:.1f} ms")


class Residual(nn.Module):
    """Two convolutions and what they add to, at half the size."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.short = nn.Conv2d(before, after, 1, 2)
        self.long = nn.Sequential(
            nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1), nn.BatchNorm2d(after),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, after, height / 2, width / 2)."""
        return nn.functional.relu(self.short(images) + self.long(images))


class Files(Dataset[tuple[torch.Tensor, int]]):
    """The JPEGs in memory, for torch's DataLoader."""

    def __init__(self, files: list[bytes]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return CROP(self.files[number], np.random.default_rng()), number % 10


def _pair(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    return CROP(sample["jpg"], np.random.default_rng()), int(sample["cls"])


def with_box(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The bytes as they are, and a box."""
    return sample | {"image_box": np.array(box_of(sample["image"], rng), np.int32)}


def loaders(files: list[bytes], folder: str, workers: int) -> Iterator[tuple[str, Iterable[Any]]]:
    """Name and batches without end of each loader: images and labels."""
    with ls.ShardWriter(folder, max_samples=max(16, len(files) // 16)) as writer:
        for number, data in enumerate(files):
            writer.write({"__key__": f"{number:06d}", "jpg": data, "cls": str(number % 10)})

    def ours(**settings: Any) -> Iterator[dict[str, Any]]:
        split = ls.SplitConfig(writer.urls, sampling="shuffled")
        module = ls.ShardDataModule(
            split, fields={"image": "jpg", "label": "cls"}, batch_size=BATCH, num_workers=workers,
            loader=ls.LoaderConfig(cache_dir=f"{folder}/cache"), **settings,
        )  # fmt: skip
        return chain.from_iterable(repeat(module.loader("train", rank=0, world_size=1)))

    def on_device(batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        boxes = [tuple(box) for box in batch["image_box"].tolist()]
        return cropped(decoded(batch["image"], DEVICE), boxes), batch["label"]

    crops = ours(decode={"image": "raw"}, transforms={"image": CROP})
    yield "ours, workers decode", ((each["image"], each["label"]) for each in crops)
    sent = ours(decode={"image": "raw"}, sample_transforms=[with_box])
    yield "ours, the device decodes", map(on_device, sent)
    shards = (
        wds.WebDataset(writer.urls, shardshuffle=False, resampled=True).shuffle(1000).map(_pair)
    )
    yield "webdataset", wds.WebLoader(shards.batched(BATCH), batch_size=None, num_workers=workers)
    plain = DataLoader(Files(files), BATCH, shuffle=True, drop_last=True, num_workers=workers)
    yield "torch DataLoader, in memory", chain.from_iterable(repeat(plain))


def train(name: str, batches: Iterable[Any], seconds: float) -> None:
    """Print images a second and the share of time that the model waits for batches."""
    torch.manual_seed(0)
    blocks = [Residual(3, 16), Residual(16, 32), Residual(32, 64)]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    model.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    iterator, waited_s, images, begun = iter(batches), 0.0, 0, time.perf_counter()
    for step in range(10**9):
        asked = time.perf_counter()
        pixels, labels = next(iterator)
        pixels, labels = pixels.to(DEVICE), torch.as_tensor(labels).to(DEVICE)
        waited_s += time.perf_counter() - asked
        loss = nn.functional.cross_entropy(model(pixels.float() / 255), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        _synchronize()
        images += len(labels)
        if step == 1:  # workers have started
            waited_s, images, begun = 0.0, 0, time.perf_counter()
        elif step > 1 and time.perf_counter() - begun > seconds:
            break
    total_s = time.perf_counter() - begun
    print(
        f"{name:28s} {images / total_s:8.0f} images/s, waited {waited_s / total_s:.0%}", flush=True
    )


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=10, help="of training by each loader")
    options = parser.parse_args()
    torch.set_num_threads(1)
    by, name = ("torchvision", torch.cuda.get_device_name()) if ON_GPU else ("simplejpeg", "no GPU")
    print(f"torch {torch.__version__}, {name}, decoded by {by}")
    pictures = list(map(jpeg_of, range(256)))  # which are slow to make
    files = [pictures[number % len(pictures)] for number in range(NUM_IMAGES)]
    boxes = [box_of(data, np.random.default_rng(number)) for number, data in enumerate(files)]
    rates(files, boxes)
    differences(files, boxes)
    if ON_GPU:
        for synchronized in (False, True):
            tries = hazard(files, synchronized=synchronized)
            print(f"memory overwritten in {tries} of 100 tries, synchronized: {synchronized}")
        beside_a_model(files)
    torch.set_num_threads(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(prefix="lightning-shards-") as folder:
        for loader, batches in loaders(files, folder, os.cpu_count() or 1):
            train(loader, batches, options.seconds)


if __name__ == "__main__":
    main()
