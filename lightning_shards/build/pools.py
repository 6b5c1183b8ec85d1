"""The pool of one rank: which kind, how many workers, and how much they make ahead."""

from contextlib import suppress

from lightning_shards.config.loading import LoaderConfig
from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.fields import optional_names
from lightning_shards.workers.inline import InlinePool
from lightning_shards.workers.messages import BatchBytes, batch_bytes, most_batches, tensor_bytes
from lightning_shards.workers.pool import Pool
from lightning_shards.workers.private_sources import try_first_sample
from lightning_shards.workers.processes import ProcessPool
from lightning_shards.workers.threads import ThreadPool, require_own_randomness
from lightning_shards.workers.worker_imports import require_guard_for


def make_pool(
    config: LoaderConfig,
    num_workers: int,
    source: Source,
    place: Place,
    *,
    sample: LoadedBatch | None = None,
    on_cuda: bool = False,
    ranks: int = 1,
) -> Pool:
    """The pool of one rank; the size of its batches is estimated from one sample.

    Args:
        config: How batches are made.
        num_workers: Number of workers of this rank; 0: its own thread makes the batches.
        source: Makes the batches.
        place: The rank and the world size.
        sample: A batch of one sample; None: it is made if the pool needs its size, or samples may
            lack a field.
        on_cuda: Whether batches go to a CUDA device.
        ranks: Number of ranks of this machine.

    Raises:
        ShardError: The sample cannot be made, or the pool cannot run this source here.
    """
    if num_workers == 0 or config.pool == "inline":
        if sample is None and optional_names(source.describe().fields):
            try_first_sample(source, place)  # says which optional field is in no sample
        return InlinePool(config.worker_timeout_s, can_grow=config.pool != "inline")
    sample = sample or try_first_sample(source, place)
    if config.pool == "threads" or config.threads_per_worker > 1:
        require_own_randomness(source)
    if config.pool == "threads":
        return _thread_pool(config, num_workers, source, sample)
    if config.multiprocessing_context != "fork":
        require_guard_for(source)
    batch = batch_bytes(sample.batch, source.epochs.batch_size)
    return _process_pool(config, num_workers, batch, on_cuda, ranks)


def _thread_pool(
    config: LoaderConfig, num_workers: int, source: Source, sample: LoadedBatch
) -> ThreadPool:
    batch_size, at_once = source.epochs.batch_size, 1
    with suppress(ConfigError):  # the size of what cannot be pickled is unknown
        at_once = most_batches(batch_bytes(sample.batch, batch_size))
    size = at_once * tensor_bytes(sample.batch, batch_size)
    prefetch_factor = _prefetch(config, num_workers, size)
    return ThreadPool(num_workers, prefetch_factor, config.worker_timeout_s, at_once)


def _process_pool(
    config: LoaderConfig, num_workers: int, batch: BatchBytes, on_cuda: bool, ranks: int
) -> ProcessPool:
    threads = config.threads_per_worker
    # a worker keeps messages ready; if it has several threads, each of these keeps batches, too
    kept = batch.total * (most_batches(batch) + (threads if threads > 1 else 0))
    return ProcessPool(
        num_workers,
        _prefetch(config, num_workers, kept),
        config.multiprocessing_context,
        on_cuda if config.pin_memory is None else config.pin_memory,
        threads,
        batch,
        ranks,
        config.worker_timeout_s,
    )


def _prefetch(config: LoaderConfig, num_workers: int, kept: int) -> int:
    """The configured factor, or less if workers that keep `kept` bytes exceed `prefetch_bytes`."""
    return max(1, min(config.prefetch_factor, config.prefetch_bytes // max(num_workers * kept, 1)))
