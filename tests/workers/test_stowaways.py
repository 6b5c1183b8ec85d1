"""What cannot travel from a process to the trainer is an error, and nobody waits for it."""

import multiprocessing
from dataclasses import replace
from itertools import count
from threading import Lock

import pytest
import torch

from lightning_shards.errors import ConfigError, SampleError, WorkerError
from lightning_shards.readers.source import SourceDescription
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.workers.messages import batch_bytes
from lightning_shards.workers.processes import ProcessPool

pytestmark = [pytest.mark.ddp, pytest.mark.timeout(60)]  # a trainer that waits for ever ends here

POOL = ProcessPool(2, start_method="fork")


class PicklesNot:
    def __reduce__(self):
        raise ArithmeticError("pickles not")


def refuse_the_trainer():
    if multiprocessing.parent_process() is None:
        raise ArithmeticError("unpickles not")


class UnpicklesNot:
    def __reduce__(self):
        return refuse_the_trainer, ()


class TwoWordsError(SampleError):
    """It pickles, and cannot be made again from its one argument."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


class Odd:
    """A source whose batch number 5 holds, or raises, what it is given."""

    def __init__(self, make):
        self.make = make

    def describe(self):
        return SourceDescription("odd", "sequential")

    def batches(self, place, cursor, arena=None):
        for number in count(place.worker, place.num_workers):
            odd = self.make() if number == 5 else None
            if isinstance(odd, Exception):
                raise odd
            batch = {
                "__key__": [f"{number}-0", f"{number}-1"],
                "odd": [None, odd],
                "x": torch.full((2,), number),
            }
            yield LoadedBatch(batch)


def numbers(stream, count):
    return [int(next(stream).batch["x"][0]) for _ in range(count)]


@pytest.mark.parametrize(
    ("make", "pool"), [(Lock, POOL), (PicklesNot, replace(POOL, batch_bytes=2**20))]
)
def test_a_value_that_cannot_be_pickled_is_an_error_of_its_sample(make, pool, start):
    """Also where several batches are in a message."""
    stream = start(pool, Odd(make))
    assert numbers(stream, 5) == list(range(5))
    with pytest.raises(SampleError) as caught:
        next(stream)
    text = str(caught.value)
    assert text.startswith("field 'odd' of sample '5-1' cannot travel from a worker process")
    assert "pool='threads'" in text


def test_a_value_that_cannot_be_unpickled_is_an_error_of_its_worker(start):
    stream = start(POOL, Odd(UnpicklesNot))
    with pytest.raises(WorkerError, match=r"cannot be unpickled .*ArithmeticError: unpickles not"):
        numbers(stream, 6)


def test_an_error_that_cannot_travel_comes_with_its_name_and_text(start):
    stream = start(POOL, Odd(lambda: TwoWordsError("one", "two")))
    assert numbers(stream, 5) == list(range(5))
    with pytest.raises(WorkerError, match="TwoWordsError in a worker process: one two"):
        next(stream)


def test_the_first_sample_shows_what_the_trainer_cannot_unpickle():
    class Elsewhere:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(ConfigError, match=r"field 'odd' cannot travel .*no number"):
        batch_bytes({"odd": [Elsewhere()]}, 8)
