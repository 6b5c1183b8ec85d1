"""The way of a batch from a worker to the trainer, within one process."""

import multiprocessing
from typing import NamedTuple

from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.workers.connection import MessageMaker, TrainerEnd, WorkerEnd, new_buffers


class Link:
    """Both ends of the connection of a worker that may have so many messages on their way."""

    def __init__(self, credit=1):
        near, far = multiprocessing.Pipe()
        self.buffers = new_buffers(credit)
        self.trainer, self.worker = TrainerEnd(near, self.buffers), WorkerEnd(far, credit)
        self.maker = MessageMaker(self.buffers)
        self.far = far

    def send(self, *batches):
        """Send a message."""
        self.worker.wait_for_credit()
        self.worker.send(self.maker.message([LoadedBatch(batch) for batch in batches]))

    def travelled(self, *batches):
        """The batches of a message as the trainer gets them."""
        self.send(*batches)
        return [loaded.batch for loaded in self.trainer.receive()]

    def in_use(self):
        """For each buffer, whether it is in use."""
        return [bool(buffer.flags[0]) for buffer in self.buffers]


class Pair(NamedTuple):
    """A batch of the user's own class."""

    image: object
    label: object
