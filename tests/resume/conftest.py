"""Ranks for chains of fits."""

import pytest
from chains import Ranks
from forked_programs import ForkedPrograms


@pytest.fixture(scope="session")
def ranks(forked_programs: ForkedPrograms) -> Ranks:
    """Fits on groups of ranks of any size."""
    return Ranks(forked_programs)
