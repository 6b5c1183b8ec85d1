"""What the monitor logs and says of remote shards."""

from typing import Any

import pytest
import torch

from lightning_shards.samples.stage_clock import ActorTotals
from lightning_shards.shards.storage.protocol import FetchTotals


def fetch(fit: Any, *totals: float) -> None:
    """The batches that come now were fetched so."""
    times = fit.loader.times
    times.fetched = times.fetched.plus(FetchTotals(*totals))


def test_figures_of_the_network_are_logged_beside_the_others(fake_fit: Any) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    fetch(fake_fit, 10, 1, 300, 400)
    fake_fit.step(wait_s=3, busy_s=1, fetch=2, decode=1)
    assert fake_fit.windows("fetched_bytes_per_s") == [75]
    assert fake_fit.windows("requests_per_s") == [2.5]
    assert fake_fit.windows("repeated_requests") == [1]
    assert fake_fit.windows("cached_fraction") == [0.25]
    assert fake_fit.windows("loader_fetch_fraction") == [pytest.approx(2 / 3)]
    fake_fit.step(wait_s=3, busy_s=1, decode=1)  # nothing in this window
    assert fake_fit.windows("cached_fraction") == [0.25]


def test_what_comes_from_actors_is_logged(fake_fit: Any) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    times = fake_fit.loader.times
    times.received = times.received.plus(ActorTotals(400, 1, 2))
    fake_fit.step(wait_s=3, busy_s=1)
    assert fake_fit.windows("received_bytes_per_s") == [100]
    assert fake_fit.windows("actor_restarts") == [1]
    assert fake_fit.windows("remade_batches") == [2]
    fake_fit.end()
    assert "1 restart of actors, up to 2 batches made again" in fake_fit.reported[-1]


def test_a_line_of_the_report_is_of_all_ranks(make_fit: Any) -> None:
    fit = make_fit(2)
    fetch(fit, 1000, 0, 9e9, 9e9)  # by an earlier fit
    fit.begin()
    fit.step(wait_s=0, busy_s=1)
    fetch(fit, 965, 2, 6.15e9, 11.8e9)
    fit.step(wait_s=1, busy_s=1)

    def reduce(own: torch.Tensor, reduce_op: str) -> torch.Tensor:
        return own + own.flip(0)  # the other rank has fetched as much

    fit.trainer.strategy.reduce = reduce
    fit.end()
    assert (
        "fetched 12.3 GB in 1,930 requests (4 repeated), 48 % of 23.6 GB came from the cache"
    ) in fit.reported[-1].splitlines()
