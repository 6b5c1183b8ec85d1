"""How an error of a worker process travels to the trainer, which raises it in step order."""

import logging
import pickle
import traceback
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from lightning_shards import errors
from lightning_shards.errors import SampleError, ShardError, WorkerError
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.workers.messages import MessageMaker, PickledMessage, require_picklable

_log = logging.getLogger(__name__)


class WorkerTraceback(Exception):  # noqa: N818 like multiprocessing's RemoteTraceback
    """The cause of an error in a worker process, with its stack there, as text."""

    def __str__(self) -> str:
        """The text on lines of its own."""
        return f"\n{self.args[0].rstrip()}"


class Failure(NamedTuple):
    """An error in a worker process, with its cause and with its whole stack there as text."""

    error: Exception
    cause: str
    stack: str


def failure_of(error: Exception) -> Failure:
    """An error that was caught in this worker, in a form that can be pickled.

    An error of ours names what is wrong, and its cause shows the user's part of the stack. Of any
    other error the whole stack is shown.
    """
    stack = "".join(traceback.format_exception(error))
    cause = stack
    if isinstance(error, ShardError):
        cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
    failure = Failure(error, cause, stack)
    try:
        pickle.loads(pickle.dumps(failure))  # noqa: S301 what this process made itself
    except Exception:  # noqa: BLE001 a class of the user's may raise anything here
        return Failure(_nearest(error), cause or stack, stack)
    return failure


def _nearest(error: Exception) -> ShardError:
    """The same message in the nearest class of this package."""
    for kind in type(error).__mro__:
        if issubclass(kind, ShardError) and kind.__module__ == errors.__name__:
            return kind(str(error))
    return WorkerError(f"{type(error).__name__} in a worker process: {error}")


def raise_failure(failure: Failure) -> NoReturn:
    """Raise in the trainer the error that a worker failed with."""
    _log.debug("an error in a worker process: %s", failure.stack)
    raise failure.error from (WorkerTraceback(failure.cause) if failure.cause else None)


def last_message(
    maker: MessageMaker, ready: Sequence[LoadedBatch], failure: Failure
) -> PickledMessage:
    """The message with the batches made before a failure, and with the failure itself.

    If one of these batches cannot be pickled, that is the failure, as it comes first.
    """
    sent: list[LoadedBatch] = []
    for loaded in ready:
        try:
            require_picklable(loaded.batch)
        except SampleError as error:
            failure = failure_of(error)
            break
        sent.append(loaded)
    try:
        return maker.message(sent, failure).pickled()
    except Exception as error:  # noqa: BLE001 out of shared memory or open files
        lost = WorkerError(
            f"batches cannot be sent to the trainer ({type(error).__name__}: {error}); lower "
            "prefetch_factor or num_workers, raise `ulimit -n`, or take pool='threads'"
        )
        return maker.message([], failure_of(lost)).pickled()
