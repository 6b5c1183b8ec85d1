"""The limit of open files: what its parts may have."""

import resource
import sys

import pytest

from lightning_shards.system.process import share_of_files


@pytest.mark.parametrize(
    ("limit", "num_parts", "expected"),
    [(1024, 1, 512), (1024, 4, 128), (resource.RLIM_INFINITY, 4, sys.maxsize)],
)
def test_parts_share_half_of_the_limit(limit, num_parts, expected, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert share_of_files(num_parts) == expected
