"""The shards that `selftest` packs, and its checks of loaders, of pinned batches and of events."""

import io
import platform
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.utilities import rank_zero_only

import lightning_shards
from lightning_shards.config.loading import LoaderConfig
from lightning_shards.config.splits import SplitConfig
from lightning_shards.datamodule import ShardDataModule
from lightning_shards.dataprep.writer import ShardWriter
from lightning_shards.errors import ConfigError
from lightning_shards.loader import ShardLoader
from lightning_shards.profiling.starvation import make_clock
from lightning_shards.system.cpus import num_cpus

NUM_SAMPLES: Final = 512
IMAGE_SHAPE: Final = (3, 64, 64)
NUM_CLASSES: Final = 10

_BATCH_SIZE = 64
_SHARD_SIZE = 120
"""Samples of a shard; the last shard is smaller."""
_WORK_S = 0.3
"""Seconds of work that are queued on a device, to see whether events notice it."""
_MATRIX_SIZE = 4096


class SkippedError(Exception):
    """A check that cannot run here; the message says what is missing."""


class FailedError(Exception):
    """A check that failed; the message says what should have been, and what was."""


class CheckResult(NamedTuple):
    """What came of one check: `outcome`, and a sentence about it."""

    name: str
    outcome: Literal["passed", "skipped", "failed"]
    text: str


@dataclass(frozen=True, slots=True)
class Subject:
    """The shards, the device and the settings of the checks.

    Attributes:
        folder: A temporary folder, for what the checks write.
        urls: The shards in it.
        device: The device of this process; the CPU if the one that was asked for is not here.
        missing: The device that was asked for and is not here; empty if it is.
        devices: Ranks of each node.
        num_nodes: Number of nodes.
        num_workers: Workers of each loader.
        seconds: Length of each measurement.
    """

    folder: Path
    urls: str
    device: torch.device
    missing: str
    devices: int
    num_nodes: int
    num_workers: int
    seconds: float

    @property
    def world_size(self) -> int:
        """Ranks of the fits."""
        return self.devices * self.num_nodes

    def data(self, **settings: Any) -> ShardDataModule:
        """A data module of the shards, with some of its settings or of `LoaderConfig` replaced."""
        names = LoaderConfig.__dataclass_fields__.keys() & settings.keys()
        loader = {name: settings.pop(name) for name in names}
        given: dict[str, Any] = {
            "fields": {"image": "npy", "label": "cls"},
            "transforms": {"image": flip},
            "batch_size": _BATCH_SIZE,
            "num_workers": self.num_workers,
        }
        return ShardDataModule(
            train=SplitConfig(self.urls, sampling="shuffled"),
            loader=LoaderConfig(cache_dir=str(self.folder / "cache"), **loader),
            **given | settings,
        )


Check = Callable[[Subject], str]
"""Gives a sentence about what it saw; raises `SkippedError` or `FailedError`."""


def pack_subject(folder: Path, device: str, **settings: Any) -> Subject:
    """Pack the shards, and find the device.

    Raises:
        ShardError: They cannot be written.
    """
    writer = ShardWriter(folder / "shards", max_samples=_SHARD_SIZE, cache_dir=folder / "cache")
    with writer:
        for number in range(NUM_SAMPLES):
            label = str(number % NUM_CLASSES)
            writer.write({"__key__": f"{number:06d}", "npy": _npy(image_of(number)), "cls": label})
    kind = _device_here(device)
    return Subject(
        folder,
        writer.urls,
        torch.device(kind),
        "" if device in ("auto", kind) else device,
        **settings,
    )


def require_launched(devices: int, num_nodes: int) -> None:
    """Check that a launcher started as many processes as the fits will wait for.

    Raises:
        ConfigError: It started others, or several nodes have no launcher.
    """
    if TorchElasticEnvironment.detect():
        launched, wanted = TorchElasticEnvironment().world_size(), devices * num_nodes
        if launched != wanted:
            raise ConfigError(
                f"torchrun started {launched} processes, and --devices {devices} x --num-nodes "
                f"{num_nodes} are {wanted}; give both the same numbers"
            )
    elif num_nodes > 1 and not SLURMEnvironment.detect():
        raise ConfigError(
            f"--num-nodes {num_nodes} needs a launcher, which tells the nodes of one another; "
            "start it by torchrun, as --help shows"
        )


def image_of(number: int) -> np.ndarray:
    """The image of a sample: noise of its own, uint8 of `IMAGE_SHAPE`."""
    return np.random.default_rng(number).integers(0, 256, IMAGE_SHAPE, np.uint8)


def flip(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The image or its mirror image: a random transform, which must not depend on the workers."""
    return image[..., ::-1].copy() if rng.random() < 0.5 else image  # noqa: PLR2004


def describe_machine() -> str:
    """The system, its processors and the versions that matter, in one line."""
    others = [f"{name} {version(name)}" for name in ("torch", "lightning", "numpy")]
    versions = ", ".join([f"lightning-shards {lightning_shards.__version__}", *others])
    python = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if torch.cuda.is_available():
        python += f", {torch.cuda.get_device_name()} with CUDA {torch.version.cuda}"
    return f"{python}, {num_cpus()} cores; {versions}"


def is_first_rank() -> bool:
    """Whether this is rank 0 of the launcher, or the only process."""
    return cast("Any", rank_zero_only).rank == 0


@contextmanager
def one_thread() -> Generator[None]:
    """Let torch compute in one thread: on few cores many of them would slow down the tiny fits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run_check(name: str, check: Check, subject: Subject) -> CheckResult:
    """The result of a check; any error is one of its faults."""
    try:
        return CheckResult(name, "passed", check(subject))
    except SkippedError as reason:
        return CheckResult(name, "skipped", str(reason))
    except FailedError as fault:
        return CheckResult(name, "failed", str(fault))
    except Exception as error:  # noqa: BLE001 the other checks shall still run
        return CheckResult(
            name, "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"
        )


def require(claim: bool, fault: str) -> None:
    """Raise `FailedError` with this fault unless the claim is true."""
    if not claim:
        raise FailedError(fault)


def read_each_sample_once(subject: Subject) -> str:
    """Every sample is read once, as it was written."""
    keys: list[str] = []
    for batch in _batches(subject.data(num_workers=0, transforms={}, **_WHOLE)):
        keys += batch["__key__"]
        images = [image_of(int(key)) for key in batch["__key__"]]
        require(np.array_equal(batch["image"], images), "an image was not read as it was written")
        labels = [int(key) % NUM_CLASSES for key in batch["__key__"]]
        require(batch["label"].tolist() == labels, "a label was not read as it was written")
    expected = [f"{number:06d}" for number in range(NUM_SAMPLES)]
    require(sorted(keys) == expected, f"{len(set(keys))} of {NUM_SAMPLES} samples were read")
    return f"{NUM_SAMPLES} samples, each once and as they were written"


def compare_workers(subject: Subject) -> str:
    """Batches of worker processes and threads are those of one thread, byte for byte."""
    if not subject.num_workers:
        raise SkippedError("needs --num-workers of at least 1")
    expected = list(_batches(subject.data(num_workers=0)))
    for pool in ("threads", "processes"):
        _require_same(_batches(subject.data(pool=pool)), expected, f"by {pool}")
    return f"batches by {subject.num_workers} processes and threads equal those of one thread"


def resume_on_two_ranks(subject: Subject) -> str:
    """An epoch stopped in its middle goes on with two ranks, without a repeat."""
    loader = subject.data(num_workers=0, **_WHOLE).loader("train")
    batches = iter(loader)
    ids = [_ids(cast("dict[str, Any]", next(batches))) for _ in range(2)]
    state = loader.state_dict()
    for rank in range(2):
        resumed = subject.data(**_WHOLE).loader("train", rank=rank, world_size=2)
        resumed.load_state_dict(state)
        ids += [_ids(batch) for batch in _until_end(resumed)]
    served = np.concatenate(ids)
    num_served = len(np.unique(served, axis=0))
    require(
        len(served) == num_served == NUM_SAMPLES,
        f"{len(served)} samples were served, {num_served} different ones, of {NUM_SAMPLES}",
    )
    return f"{NUM_SAMPLES} samples, each once over one rank and then two"


def compare_moved(subject: Subject) -> str:
    """Batches on the device are those on the CPU, copied while the workers make the next ones."""
    device = require_device(subject)
    pins = (False, True) if device.type == "cuda" else (False,)
    expected = list(_batches(subject.data(num_workers=0)))
    for pin_memory in pins:
        loaded = _batches(subject.data(pin_memory=pin_memory))
        moved = [move_data_to_device(batch, device) for batch in loaded]  # as a Trainer does
        back = (move_data_to_device(batch, torch.device("cpu")) for batch in moved)
        _require_same(back, expected, f"on {device} with pin_memory={pin_memory}")
    return f"{len(expected)} batches on {device} equal those on the CPU"


def compare_pinned(subject: Subject) -> str:
    """Pinned batches are in page-locked memory, and equal to those that are not."""
    require_device(subject, "cuda")
    if not subject.num_workers:
        raise SkippedError("needs --num-workers of at least 1: only processes pin their batches")
    expected = list(_batches(subject.data(num_workers=0)))
    pinned = list(_batches(subject.data(pin_memory=True)))
    _require_same(pinned, expected, "with pin_memory=True")
    names = [name for name, value in _tensors(pinned[0]).items() if not value.is_pinned()]
    require(not names, f"with pin_memory=True these are not in page-locked memory: {names}")
    return f"{len(pinned)} pinned batches equal those that are not pinned"


def watch_events(subject: Subject) -> str:
    """The events of a device tell work from idleness, and time a forward pass."""
    device = require_device(subject, "cuda")
    clock, queue_work = make_clock(device), _calibrated_work(device)
    queue_work()
    clock.step_ended()
    clock.batch_came(1.0)
    require(clock.starved_s == 0, "a wait counts as lost although the device was at work")
    torch.cuda.synchronize(device)
    clock.batch_came(2.0)
    require(clock.starved_s == 2, "a wait does not count as lost although the device was idle")  # noqa: PLR2004
    begin = time.perf_counter()
    clock.forward_begins()
    queue_work()
    clock.forward_ended()
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - begin
    clock.forward_begins()
    said = f"by events {clock.forward_s:.3f} s, by the host's clock {seconds:.3f} s"
    require(0.7 * seconds < clock.forward_s <= 1.01 * seconds, f"a forward pass took {said}")
    return f"work is told from idleness; a forward pass took {said}"


CHECKS: Final[dict[str, Check]] = {
    "samples": read_each_sample_once,
    "workers": compare_workers,
    "resume": resume_on_two_ranks,
    "device": compare_moved,
    "pinned": compare_pinned,
    "events": watch_events,
}

_WHOLE: Final = {"batch_size": 32}
"""A batch size that divides the number of samples, also over two ranks."""


def require_device(subject: Subject, kind: str | None = None) -> torch.device:
    """The device, if it is of this kind; None: if it is not the CPU.

    Raises:
        SkippedError: It is not.
    """
    if subject.missing:
        raise SkippedError(f"there is no {subject.missing} device here")
    if subject.device.type == (kind or subject.device.type) != "cpu":
        return subject.device
    raise SkippedError(f"needs a {kind or 'cuda or mps'} device, not {subject.device}")


def _device_here(device: str) -> str:
    """The device, or what stands in for it here."""
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    wanted = ("cuda", "mps") if device == "auto" else (device,)
    return next((kind for kind in wanted if here.get(kind)), "cpu")


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _batches(data: ShardDataModule) -> Iterator[dict[str, Any]]:
    """One epoch of batches; the workers end with it."""
    return _until_end(data.loader("train"))


def _until_end(loader: ShardLoader) -> Iterator[dict[str, Any]]:
    try:
        for batch in loader:
            yield cast("dict[str, Any]", batch)
    finally:
        loader.close()


def _ids(batch: dict[str, Any]) -> np.ndarray:
    """The sample ids of a batch: int64, shape (batch, 2)."""
    return batch["__id__"].numpy()


def _tensors(batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}


def _require_same(
    batches: Iterable[dict[str, Any]], expected: Sequence[dict[str, Any]], where: str
) -> None:
    """Fail unless these are the expected batches, in their order and to the byte."""
    num_batches = 0
    for step, batch in enumerate(batches):
        num_batches += 1
        for name, value in expected[step].items() if step < len(expected) else ():
            is_tensor = isinstance(value, torch.Tensor)
            is_same = torch.equal(batch[name], value) if is_tensor else batch[name] == value
            require(is_same, f"{name!r} of batch {step} {where} is not what one thread makes")
    require(
        num_batches == len(expected), f"{num_batches} batches {where} instead of {len(expected)}"
    )


def _calibrated_work(device: torch.device) -> Callable[[], None]:
    """A function that queues about `_WORK_S` seconds of work and returns at once."""
    matrix = torch.ones(_MATRIX_SIZE, _MATRIX_SIZE, device=device)
    out = torch.empty_like(matrix)

    def seconds_of(products: int) -> float:
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        for _ in range(products):
            torch.mm(matrix, matrix, out=out)
        torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    seconds_of(3)  # loads the kernels
    products = ceil(_WORK_S / (seconds_of(3) / 3))

    def queue_work() -> None:
        for _ in range(products):
            torch.mm(matrix, matrix, out=out)

    return queue_work
