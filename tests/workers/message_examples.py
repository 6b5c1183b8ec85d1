"""A batch with tensors small and large, and its way through a message."""

import os
from typing import NamedTuple

import torch

from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.workers.connection import ReceivedBuffers, SharedBuffers
from lightning_shards.workers.messages import SHARED_BYTES, MessageMaker, PickledMessage

SMALL = torch.arange(6, dtype=torch.int16).reshape(2, 3)
LARGE = torch.zeros(SHARED_BYTES, dtype=torch.uint8)
BATCH = {"__key__": ["a", "b"], "small": SMALL, "large": LARGE, "array": SMALL.numpy()}


def message_of(*batches, maker=None):
    return (maker or MessageMaker(SharedBuffers(1))).message(
        [LoadedBatch(batch) for batch in batches]
    )


def travelled(message, buffers=None):
    """The message as the trainer gets it: its file comes under another number there."""
    content, fd, _ = message.pickled()
    there = None if fd is None else os.dup(fd)
    return PickledMessage(content, there).unpickled(buffers or ReceivedBuffers())


def unpacked(message, **options):
    return message.unpack(message.lease(), **options)


class Pair(NamedTuple):
    """A batch of the user's own class."""

    image: object
    label: object
