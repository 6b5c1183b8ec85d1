"""Ray actors beside worker processes: `python benchmarks/scale_out.py`, ten minutes on two cores.

IMG: 64 crops of 224 x 224 a batch from JPEGs of 500 x 375. SMALL: 100 PNGs of 28 x 28. Both pools
have two workers on this machine and take turns, so that other work meets both. A line tells the CPU
of all processes for a batch, that of the trainer alone and the wall time; then the ratio of
processes to Ray. `--sleep` measures a transform that sleeps 20 ms a sample, with 1 and
with 8 actors, which need no cores.
"""

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import simplejpeg
from PIL import Image
from webdataset.writer import TarWriter

from benchmarks.peers.datasets import coloured_noise
from lightning_shards import DecodeRandomResizedCrop, LoaderConfig, RayConfig, ShardDataModule

SETS = {"IMG": (64, 40), "SMALL": (100, 300)}
"""Samples of a batch, and batches that are measured."""


class Sleep:
    """A transform that takes 20 ms and no CPU."""

    deterministic = True

    def __call__(self, image: object) -> object:
        """The image, later."""
        time.sleep(0.02)
        return image


def pack(folder: Path) -> None:
    """A shard of 2,000 JPEGs, of which 50 differ, and one of 5,000 PNGs."""
    rng = np.random.default_rng(0)
    noise = [np.clip(128 + coloured_noise(rng, 375, 500), 0, 255) for _ in range(50)]
    jpegs = [simplejpeg.encode_jpeg(pixels.astype(np.uint8), quality=90) for pixels in noise]
    with TarWriter(str(folder / "IMG.tar")) as writer:
        for number in range(2000):
            writer.write({"__key__": f"{number:04d}", "img": jpegs[number % 50]})
    with TarWriter(str(folder / "SMALL.tar")) as writer:
        for number in range(5000):
            png = io.BytesIO()
            Image.fromarray(rng.integers(256, size=(28, 28), dtype=np.uint8)).save(png, "PNG")
            writer.write({"__key__": f"{number:04d}", "img": png.getvalue()})


def make_module(
    folder: Path, name: str, pool: str, workers: int, *, sleep: bool = False
) -> ShardDataModule:
    """The data of one measurement."""
    crop = {"image": DecodeRandomResizedCrop(size=224)} if name == "IMG" else {}
    return ShardDataModule(
        {"urls": str(folder / f"{name}.tar"), "sampling": "shuffled"},
        fields={"image": "img"},
        decode={} if name == "IMG" else {"image": "gray"},
        transforms={"image": Sleep()} if sleep else crop,
        batch_size=8 if sleep else SETS[name][0],
        num_workers=workers,
        loader=LoaderConfig(
            pool=pool,
            cache_dir=str(folder / "cache"),
            ray=RayConfig("local", cpus_per_worker=0.1) if pool == "ray" else RayConfig(),
        ),
    )


def cpu_s() -> dict[int, float]:
    """The CPU seconds of this process and of each one below it."""
    own = psutil.Process()
    return {each.pid: sum(each.cpu_times()[:2]) for each in [own, *own.children(recursive=True)]}


def measure(module: ShardDataModule, batches: int, **of_pool: int) -> tuple[float, float, float]:
    """Milliseconds a batch: CPU of all processes, CPU of the trainer, and wall time."""
    with module.loader("train") as loader:
        loader.pool = replace(cast("Any", loader.pool), **of_pool)

        def endless() -> Iterator[object]:
            while True:
                yield from loader

        stream = endless()
        for _ in range(batches // 2):  # workers and what they have ready
            next(stream)
        before, begin = cpu_s(), time.perf_counter()
        for _ in range(batches):
            next(stream)
        wall_s, after = time.perf_counter() - begin, cpu_s()
    spent = {pid: seconds - before.get(pid, 0.0) for pid, seconds in after.items()}
    own = psutil.Process().pid
    return tuple(1000 * s / batches for s in (sum(spent.values()), spent[own], wall_s))  # type: ignore[return-value]


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sleep", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pack(folder)
        if options.sleep:
            for actors in (1, 8):
                module = make_module(folder, "SMALL", "ray", actors, sleep=True)
                wall = measure(module, 64, batches_per_call=1)[2]  # else 256 are made ahead
                print(f"{actors} actors: {8000 / wall:.0f} samples/s of a transform of 20 ms")
            return
        for dataset, (_, batches) in SETS.items():
            ratios: list[tuple[float, ...]] = []
            for _ in range(options.rounds):
                both = {
                    pool: measure(make_module(folder, dataset, pool, 2), batches)
                    for pool in ("processes", "ray")
                }
                for pool, (cpu, own, wall) in both.items():
                    print(f"{dataset} {pool}: CPU {cpu:.1f}, trainer {own:.1f}, wall {wall:.1f} ms")
                pairs = zip(both["processes"], both["ray"], strict=True)
                ratios.append(tuple(ours / rays for ours, rays in pairs))
            for what, values in zip(
                ("CPU", "trainer", "wall"), zip(*ratios, strict=True), strict=True
            ):
                middle = statistics.median(values)
                spread = f"{min(values):.2f} to {max(values):.2f}"
                print(f"{dataset} {what}, processes : Ray = {middle:.2f} ({spread})")


if __name__ == "__main__":
    main()
