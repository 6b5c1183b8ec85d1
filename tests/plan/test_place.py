"""Places: the numbers of a process, which users and launchers give in many types."""

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from lightning_shards import Place
from lightning_shards.errors import ConfigError


def test_numbers_of_numpy_are_kept_as_plain_ones() -> None:
    place = Place(*map(np.int64, (1, 4, 2, 3, 2)))
    assert set(map(type, astuple(place))) == {int}
    assert place == Place(1, 4, 2, 3, 2)


@pytest.mark.parametrize("value", ["1", 1.0, None, True, -1, 2**20 + 1], ids=repr)
@pytest.mark.parametrize("name", ["rank", "world_size", "worker", "num_workers", "num_nodes"])
def test_what_is_no_number_of_a_process_is_named(name: str, value: Any) -> None:
    given = {"world_size": 8, "num_workers": 8} | {name: value}
    with pytest.raises(ConfigError, match=f"^{name} must be (a whole number|at most)"):
        Place(**given)


def test_a_rank_outside_of_its_world_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^rank must be at most 1, got 2$"):
        Place(2, 2)
