"""What was lost for want of data: by the host's clock, and by the event of a device."""

import pytest
import torch

from lightning_shards.measure.rates import DeviceClock, HostClock, make_clock


class FakeEvent:
    """As a CUDA event: it is reached once the device has done what was queued before it."""

    is_reached = True

    def record(self) -> None:
        self.is_reached = False

    def query(self) -> bool:
        return self.is_reached


def test_a_device_has_lost_the_waits_at_whose_end_it_had_ended_its_step() -> None:
    event = FakeEvent()
    clock = DeviceClock(event)
    clock.batch_came(100_000.0)  # before the first step nothing is lost
    for step in range(4):
        clock.step_ended()
        event.is_reached = step in (1, 3)
        clock.batch_came(10.0**step)
    assert clock.starved_s == 10 + 1000


def test_all_waiting_for_data_is_lost_on_a_cpu() -> None:
    clock = HostClock()
    for waited_s in (1.0, 2.0):
        clock.batch_came(waited_s)
        clock.step_ended()
    assert clock.starved_s == 3


@pytest.mark.parametrize("name", ["cpu", "mps", "xpu"])
def test_other_devices_than_cuda_have_the_hosts_clock(name: str) -> None:
    assert type(make_clock(torch.device(name))) is HostClock


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_is_seen_at_work_and_idle() -> None:
    clock = make_clock(torch.device("cuda"))
    assert isinstance(clock, DeviceClock)
    torch.cuda._sleep(1_000_000_000)  # cycles: about half a second
    clock.step_ended()
    clock.batch_came(1.0)
    assert clock.starved_s == 0
    torch.cuda.synchronize()
    clock.batch_came(2.0)
    assert clock.starved_s == 2
