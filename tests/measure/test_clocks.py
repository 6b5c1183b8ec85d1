"""What was lost for want of data: by the host's clock, and by the events of a device."""

import pytest
import torch

from lightning_shards.measure import rates
from lightning_shards.measure.rates import DeviceClock, HostClock, make_clock


class FakeDevice:
    """Does the work that is queued when it is told to; makes events, and counts them."""

    def __init__(self) -> None:
        self.queue: list[FakeEvent | float] = []
        self.now_ms = 0.0
        self.made = 0

    def make_event(self) -> "FakeEvent":
        self.made += 1
        return FakeEvent(self)

    def work(self) -> None:
        for work in self.queue:
            if isinstance(work, FakeEvent):
                work.reached_ms = self.now_ms
            else:
                self.now_ms += work
        self.queue.clear()


class FakeEvent:
    """As a CUDA event: putting it elsewhere forgets where it was; one never put is reached."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.reached_ms = 0.0

    def record(self) -> None:
        self.device.queue = [work for work in self.device.queue if work is not self]
        self.device.queue.append(self)

    def query(self) -> bool:
        return self not in self.device.queue

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        assert self.query()
        assert end_event.query()  # the real one raises
        return end_event.reached_ms - self.reached_ms


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def clock(device: FakeDevice) -> DeviceClock:
    return DeviceClock(device.make_event)


def test_a_device_that_is_still_at_work_when_the_batch_comes_lost_nothing(
    device: FakeDevice, clock: DeviceClock
) -> None:
    for _ in range(3):
        device.queue.append(10.0)
        clock.step_ended()
        clock.batch_came(5.0)
    assert clock.starved_s == 0


def test_a_device_that_ran_dry_lost_the_wait(device: FakeDevice, clock: DeviceClock) -> None:
    for step in range(4):
        device.queue.append(10.0)
        clock.step_ended()
        if step in (1, 3):
            device.work()
        clock.batch_came(10.0**step)
    assert clock.starved_s == 10 + 1000


def test_before_the_first_step_nothing_is_lost(clock: DeviceClock) -> None:
    clock.batch_came(100.0)
    assert clock.starved_s == 0


def step(device: FakeDevice, clock: DeviceClock, forward_ms: float) -> None:
    clock.batch_came(0.0)
    clock.forward_begins()
    device.queue.append(forward_ms)
    clock.forward_ended()
    device.queue.append(100.0)
    clock.forward_ended()  # of a second backward pass
    clock.step_ended()


def test_forward_passes_are_timed_on_the_device(device: FakeDevice, clock: DeviceClock) -> None:
    for forward_ms in (10.0, 20.0, 30.0):
        step(device, clock, forward_ms)
        device.work()
    clock.forward_begins()
    assert clock.forward_s == pytest.approx(0.06)


def test_a_forward_pass_stands_for_those_that_came_while_it_was_timed(
    device: FakeDevice, clock: DeviceClock
) -> None:
    for forward_ms in (10.0, 99.0, 99.0):
        step(device, clock, forward_ms)
    device.work()
    step(device, clock, 20.0)
    assert clock.forward_s == pytest.approx(0.03)
    device.work()
    step(device, clock, 20.0)
    assert clock.forward_s == pytest.approx(0.05)


def test_a_step_without_a_backward_pass_is_not_timed(
    device: FakeDevice, clock: DeviceClock
) -> None:
    clock.forward_begins()
    device.queue.append(1000.0)
    clock.step_ended()
    device.work()
    step(device, clock, 10.0)
    device.work()
    clock.forward_begins()
    assert clock.forward_s == pytest.approx(0.01)


def test_events_are_used_again(device: FakeDevice, clock: DeviceClock) -> None:
    for _ in range(100):
        step(device, clock, 10.0)
    assert device.made == 3


class Clock:
    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


def test_beside_a_cpu_all_waiting_is_lost_and_its_own_time_is_the_forward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = Clock()
    monkeypatch.setattr(rates, "time", time)
    clock = HostClock()
    for waited_s in (1.0, 2.0):
        clock.batch_came(waited_s)
        clock.forward_begins()
        time.now_s += 3
        clock.forward_ended()
        time.now_s += 100
        clock.forward_ended()
        clock.step_ended()
    assert (clock.starved_s, clock.forward_s) == (3, 6)


@pytest.mark.parametrize("name", ["cpu", "mps", "xpu"])
def test_other_devices_than_cuda_have_the_hosts_clock(name: str) -> None:
    assert isinstance(make_clock(torch.device(name)), HostClock)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_is_seen_at_work_and_idle() -> None:
    clock = make_clock(torch.device("cuda"))
    assert isinstance(clock, DeviceClock)
    clock.forward_begins()
    torch.cuda._sleep(1_000_000_000)  # cycles: about half a second
    clock.forward_ended()
    clock.step_ended()
    clock.batch_came(1.0)
    assert clock.starved_s == 0
    torch.cuda.synchronize()
    clock.batch_came(2.0)
    clock.forward_begins()
    assert clock.starved_s == 2
    assert 0.05 < clock.forward_s < 60
