"""How often and how long is tried again, by a clock that nobody waits for."""

import threading

import pytest

from lightning_shards.shards.remote.backend import RequestFailure
from lightning_shards.shards.remote.retries import LOOK_UP, RetryPolicy, Tries
from lightning_shards.shards.remote.transport import Connections

MIB = 1 << 20


class Clock:
    """Time that passes only when it is slept."""

    def __init__(self):
        self.time = 0.0
        self.pauses = []

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.time += seconds


def run(failures, policy=RetryPolicy(), *, takes_s=0.0, gained=0, what="bytes"):  # noqa: B008 frozen
    """The tries that these failures leave, and the pauses between them."""
    clock = Clock()
    tries = Tries(policy, lambda: what, clock.now, clock.sleep)
    for failure in failures:
        clock.time += takes_s
        if not tries.go_on(failure, gained):
            break
    return tries.failed, clock


def test_the_time_of_a_request_is_that_of_its_bytes_at_the_least_rate_and_of_the_first_one():
    policy = RetryPolicy(stall_s=30, least_rate=1024)
    assert policy.longest_s(0) == 30
    assert policy.longest_s(MIB) == 30 + 1024


def test_ten_tries_are_made():
    failed, clock = run([RequestFailure("no")] * 99)
    assert (failed, len(clock.pauses)) == (10, 9)


def test_pauses_grow_at_random_between_their_limits():
    policy = RetryPolicy(tries=1000, total_s=1e9)
    _, clock = run([RequestFailure("no")] * 400, policy)
    assert all(0.1 <= pause <= 15 for pause in clock.pauses)
    assert clock.pauses[0] <= 0.3
    assert max(clock.pauses) == 15
    pairs = list(zip(clock.pauses, clock.pauses[1:], strict=False))
    assert all(min(2 * a, 15) <= b <= 3 * a for a, b in pairs)


@pytest.mark.parametrize(
    ("policy", "outage_s", "kind", "takes_s"),
    [
        (RetryPolicy(), 40, "again", 0.0),
        (RetryPolicy(), 40, "busy", 1.0),
        (LOOK_UP, 20, "again", 0.2),
    ],
)
def test_every_range_survives_an_outage(policy, outage_s, kind, takes_s):
    """A store that is started again refuses at once, or breaks off what comes, for some seconds."""
    for number in range(500):
        clock = Clock()
        tries = Tries(policy, lambda number=number: f"bytes {number}", clock.now, clock.sleep)
        while clock.time < outage_s:
            clock.time += takes_s
            assert tries.go_on(RequestFailure("no", kind), 0), (number, clock.time)


def test_two_ranges_do_not_wait_in_step_and_each_waits_the_same_again():
    failures = [RequestFailure("no")] * 9
    first, again = run(failures, what="bytes 0 to 9"), run(failures, what="bytes 0 to 9")
    assert first[1].pauses == again[1].pauses
    assert run(failures, what="bytes 9 to 18")[1].pauses != first[1].pauses


def test_a_server_that_stalls_is_given_up_within_180_seconds():
    failed, clock = run([RequestFailure("no")] * 99, takes_s=30)
    assert failed < 10
    assert clock.time <= 180


def test_the_last_try_may_stall_and_still_ends_in_time():
    for takes_s in (1, 7, 13, 29):
        _, clock = run([RequestFailure("no")] * 99, RetryPolicy(tries=99), takes_s=takes_s)
        assert clock.time - takes_s + 30 <= 180


def test_time_counts_from_the_last_mebibyte_that_arrived():
    failures = [RequestFailure("no")] * 99
    assert run(failures, takes_s=100, gained=MIB - 1)[0] == 2
    assert run(failures, takes_s=100, gained=MIB)[0] == 10


@pytest.mark.parametrize(("asked", "waited"), [(7, 7), (59, 59), (61, 60), (1e8, 60)])
def test_a_server_may_ask_for_a_pause_of_a_minute(asked, waited):
    _, clock = run([RequestFailure("busy", "busy", retry_after_s=asked)] * 2)
    assert clock.pauses[0] == waited


@pytest.mark.parametrize("kind", ["absent", "changed", "final", "beyond"])
def test_what_would_not_change_is_tried_once(kind):
    assert run([RequestFailure("no", kind)] * 9)[0] == 1


def test_who_is_denied_tries_once_more_in_all():
    denied, broken = RequestFailure("no", "denied"), RequestFailure("no")
    assert run([denied] * 9)[0] == 2
    assert run([denied, broken, broken, denied, broken])[0] == 4


def test_connections_are_halved_for_ten_seconds():
    clock = Clock()
    connections = Connections(64, 10, clock.now)
    connections.halve(clock.now())
    assert connections.limit == 32
    clock.time = 9.9
    assert connections.limit == 32
    clock.time = 10
    assert connections.limit == 64


def test_the_refusals_of_one_moment_halve_once_and_later_ones_again():
    clock = Clock()
    connections = Connections(64, 10, clock.now)
    clock.time = 1
    for _ in range(9):
        connections.halve(began=0.5)
    assert connections.limit == 32
    clock.time = 3
    for _ in range(9):
        connections.halve(began=2)
    assert connections.limit == 16


def test_no_more_requests_are_under_way_than_the_limit():
    connections = Connections(3, 10, Clock().now)
    busy, seen, lock = 0, [], threading.Lock()

    def work():
        nonlocal busy
        for _ in range(50):
            with connections.one():
                with lock:
                    busy += 1
                    seen.append(busy)
                with lock:
                    busy -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(seen) <= 3
