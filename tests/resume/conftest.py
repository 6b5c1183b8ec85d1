"""Ranks for chains of fits."""

import pytest
from chains import Ranks


@pytest.fixture(scope="session")
def ranks(forked_programs):
    """Fits on groups of ranks of any size."""
    return Ranks(forked_programs)
