"""What threads fetch first, how many at once, and how they end."""

import threading
import time
from types import SimpleNamespace

import pytest

from lightning_shards.errors import StorageError
from lightning_shards.readers.ahead.fetch_ahead import FetchAhead
from lightning_shards.shards.remote.fetching.fetch_threads import FetchThreads
from lightning_shards.shards.storage.request_threads import RequestThreads
from lightning_shards.system.cancellation import Cancellable

LONGEST_S = 10
NOTHING = SimpleNamespace(fetch_ahead=list, has_lacked=lambda: False, is_kept=lambda _: False)


@pytest.fixture
def make_threads():
    made = []

    def make(number):
        made.append(FetchThreads(number))
        return made[-1]

    yield make
    for threads in made:
        threads.stop()
        assert threads.join(LONGEST_S)


def held(number):
    """Tasks that wait for a gate, and what tells that each was begun."""
    gate, begun = threading.Event(), threading.Semaphore(0)

    def task():
        begun.release()
        assert gate.wait(LONGEST_S)

    return gate, begun, [task] * number


def test_all_tasks_of_a_batch_run_at_once(make_threads):
    together = threading.Barrier(5)
    make_threads(4).run([lambda: together.wait(LONGEST_S)] * 5)


def test_what_is_done_meanwhile_finds_all_tasks_of_the_batch_queued(make_threads):
    """Else what it adds for later would run first."""
    gate, begun, tasks = held(2)

    def meanwhile():
        assert all(begun.acquire(timeout=LONGEST_S) for _ in tasks)
        gate.set()

    make_threads(2).run(tasks, meanwhile)


def test_what_is_no_exception_is_raised_by_the_batch_too(make_threads):
    class Panic(BaseException):
        """As extensions in Rust raise."""

    started = threading.Event()

    def panic():
        started.set()
        raise Panic

    with pytest.raises(Panic):
        make_threads(2).run([lambda: started.wait(LONGEST_S), panic])


def test_no_more_threads_are_started_than_tasks_need(make_threads):
    threads = make_threads(8)
    threads.run([])
    assert threads._threads == []
    threads.run([lambda: None])
    assert len(threads._threads) == 1
    threads.run([lambda: None] * 3)
    assert len(threads._threads) <= 3


def test_one_thread_more_than_was_asked_for_is_for_batches_alone(make_threads):
    threads = make_threads(1)
    gate, begun, soon = held(3)
    threads.replace_soon(soon)
    assert begun.acquire(timeout=LONGEST_S)
    threads.run([lambda: None])
    assert not begun.acquire(timeout=0.05)
    gate.set()


def test_a_wait_for_a_server_can_be_called_off(make_threads):
    class EnoughError(BaseException):
        """As Lightning raises when it was told to end."""

    def check():
        raise EnoughError

    gate, begun, tasks = held(2)
    with pytest.raises(EnoughError), Cancellable(check):
        make_threads(1).run(tasks)
    assert begun.acquire(timeout=LONGEST_S)  # it is under way still, in a thread of its own
    gate.set()


def test_the_thread_of_a_batch_makes_no_request_itself(make_threads):
    """A client may wait for a server in a way that no signal ends."""
    ran: list[str] = []
    make_threads(2).run([lambda: ran.append(threading.current_thread().name)] * 9)
    assert ran == ["fetch"] * 9


@pytest.mark.parametrize("number", [1, 2, 8])
def test_a_batch_does_not_wait_for_what_is_fetched_ahead(make_threads, number):
    threads = make_threads(number)
    gate, begun, soon = held(20)
    threads.replace_soon(soon)
    assert begun.acquire(timeout=LONGEST_S)
    done = []
    threads.run([lambda: done.append(1)] * 5)
    assert len(done) == 5
    assert not gate.is_set()
    gate.set()


def test_one_thread_in_four_is_left_for_batches(make_threads):
    threads = make_threads(8)
    together = threading.Barrier(9)
    threads.run([lambda: together.wait(LONGEST_S)] * 9)  # all threads are there now
    gate, begun, soon = held(20)
    threads.replace_soon(soon)
    for _ in range(6):
        assert begun.acquire(timeout=LONGEST_S)
    assert not begun.acquire(timeout=0.05)
    gate.set()


def test_what_is_needed_soon_keeps_to_its_limit_and_goes_on_when_that_grows(make_threads):
    threads = make_threads(8)
    threads.limit_soon(0)
    gate, begun, soon = held(20)
    threads.replace_soon(soon)
    assert begun.acquire(timeout=LONGEST_S)
    assert not begun.acquire(timeout=0.02)
    threads.limit_soon(100)
    for _ in range(5):
        assert begun.acquire(timeout=LONGEST_S)
    assert not begun.acquire(timeout=0.02)
    gate.set()


def test_a_batch_comes_before_what_is_needed_soon(make_threads):
    threads, order = make_threads(1), []
    gate, begun, soon = held(1)
    threads.replace_soon([*soon, *[lambda: order.append("soon")] * 3])
    assert begun.acquire(timeout=LONGEST_S)
    first = threading.Event()

    def batch(number):
        order.append("batch")
        if number == 0:
            gate.set()  # now the other thread is free, and there is more to do for the batch
            first.wait(0.05)

    threads.run([lambda number=number: batch(number) for number in range(20)])
    assert order[:20].count("batch") >= 18


def test_what_is_needed_soon_replaces_what_was_not_begun(make_threads):
    threads, ran = make_threads(1), []
    gate, begun, soon = held(1)
    threads.replace_soon([*soon, lambda: ran.append("old")])
    assert begun.acquire(timeout=LONGEST_S)
    last = threading.Event()
    threads.replace_soon([lambda: ran.append("new"), last.set])
    gate.set()
    assert last.wait(LONGEST_S)
    assert ran == ["new"]


def test_the_first_error_ends_a_batch(make_threads):
    ran = []

    def fail():
        raise ValueError("first")

    def slow():  # so that the one other thread cannot run them all before the error is raised
        ran.append(1)
        time.sleep(0.05)

    with pytest.raises(ValueError, match="first"):
        make_threads(1).run([fail, *[slow] * 200])
    assert len(ran) < 200


def test_an_error_does_not_wait_for_a_task_that_hangs(make_threads):
    gate, begun, (hang,) = held(1)

    def fail():
        assert begun.acquire(timeout=LONGEST_S)
        raise ValueError("at once")

    with pytest.raises(ValueError, match="at once"):
        make_threads(2).run([hang, fail])
    assert not gate.is_set()
    gate.set()


def test_a_batch_that_waits_gets_an_error_when_all_is_stopped(make_threads):
    threads = make_threads(1)
    gate, begun, tasks = held(3)
    errors = []

    def run():
        try:
            threads.run(tasks)
        except StorageError as error:
            errors.append(error)

    reader = threading.Thread(target=run)
    reader.start()
    assert begun.acquire(timeout=LONGEST_S)
    assert begun.acquire(timeout=LONGEST_S)
    threads.stop()
    gate.set()
    reader.join(LONGEST_S)
    assert len(errors) == 1
    with pytest.raises(StorageError, match="was closed"):
        threads.run([lambda: None])


@pytest.fixture
def deny_threads(monkeypatch):
    """Lets no thread be started after so many, as a limit of the user does, until it is called."""
    start = threading.Thread.start

    def deny(after):
        left = [after]

        def limited(thread):
            if not left[0]:
                raise RuntimeError("can't start new thread")
            left[0] -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)
        return lambda: monkeypatch.setattr(threading.Thread, "start", start)

    return deny


def test_without_one_thread_a_batch_gets_an_error_and_a_later_one_is_fetched(
    make_threads, deny_threads
):
    threads, done = make_threads(2), []
    allow = deny_threads(0)
    with pytest.raises(StorageError, match=r"ulimit -u.*fewer connections"):
        threads.run([lambda: done.append(1)])
    allow()
    threads.run([lambda: done.append(2)])
    assert done == [2]


def test_fewer_threads_than_wanted_do_the_work_of_all(make_threads, deny_threads):
    threads, done = make_threads(8), []
    deny_threads(1)
    threads.run([lambda number=number: done.append(number) for number in range(5)])
    assert sorted(done) == [0, 1, 2, 3, 4]


def test_requests_get_an_error_where_no_thread_can_be_started(deny_threads):
    threads = RequestThreads(1)
    allow = deny_threads(0)
    with pytest.raises(StorageError, match=r"ulimit -u.*fewer connections"):
        threads.begin(int).result(LONGEST_S)
    allow()
    assert threads.begin(lambda: 2).result(LONGEST_S) == 2
    threads.close()


def test_requests_share_the_threads_that_could_be_started(deny_threads):
    threads = RequestThreads(4)
    deny_threads(1)
    futures = [threads.begin(lambda number=number: number) for number in range(5)]
    assert [future.result(LONGEST_S) for future in futures] == list(range(5))
    threads.close()


def test_batches_are_read_where_no_thread_can_fetch_ahead(deny_threads, caplog):
    ended = []
    ahead = FetchAhead(lambda _: iter(()), NOTHING, lambda: ended.append(True))
    deny_threads(0)
    ahead.reach(0, 0)
    assert ended
    assert "ulimit -u" in caplog.text
    ahead.close()
