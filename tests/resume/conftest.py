"""Ranks that live as long as the tests that use them."""

from collections.abc import Iterator

import pytest
from chains import Ranks


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Four processes that fit together, in groups of any size up to four."""
    started = Ranks(tmp_path_factory.mktemp("ranks"))
    yield started
    started.close()
