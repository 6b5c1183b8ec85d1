"""From the configuration of a loader to the pool that its batches are made in."""

from lightning_shards.config import LoaderConfig
from lightning_shards.plan.place import Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.workers.inline import InlinePool
from lightning_shards.workers.messages import BatchBytes, batch_bytes, most_batches, tensor_bytes
from lightning_shards.workers.pool import Pool
from lightning_shards.workers.processes import ProcessPool
from lightning_shards.workers.threads import ThreadPool, require_own_randomness


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
    """The pool of one rank; before workers start, one sample tells how large batches are.

    Args:
        config: what was asked for.
        num_workers: workers of this rank; 0 for its own thread.
        source: what makes the batches.
        place: the rank.
        sample: a batch of one sample, if that was made already.
        on_cuda: whether batches go to a CUDA device.
        ranks: ranks of this machine.

    Raises:
        ShardError: the sample cannot be made, or the pool cannot run this source here.
    """
    if num_workers == 0 or config.pool == "inline":
        return InlinePool(config.worker_timeout_s)
    sample = sample or source.first_sample(place)
    if config.pool == "threads" or config.threads_per_worker > 1:
        require_own_randomness(source)
    if config.pool == "threads":
        size = tensor_bytes(sample.batch, source.epochs.batch_size)
        prefetch_factor = _prefetch(config, num_workers, size)
        return ThreadPool(num_workers, prefetch_factor, config.worker_timeout_s)
    batch = batch_bytes(sample.batch, source.epochs.batch_size)
    return _process_pool(config, num_workers, batch, on_cuda, ranks)


def _process_pool(
    config: LoaderConfig, num_workers: int, batch: BatchBytes, on_cuda: bool, ranks: int
) -> ProcessPool:
    threads = config.threads_per_worker
    # a worker keeps messages ready, and each thread in it batches for them
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
    """What was asked for, or less if workers that keep so many bytes exceed `prefetch_bytes`."""
    return max(1, min(config.prefetch_factor, config.prefetch_bytes // max(num_workers * kept, 1)))
