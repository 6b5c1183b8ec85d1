"""What libraries say of what the tests of one folder do."""

from collections.abc import Callable
from pathlib import Path

import pytest

Items = list[pytest.Item]


def ignored_below(conftest: str, *filters: str) -> Callable[[Items], None]:
    """The hook of a conftest that ignores these warnings in the tests of its folder."""

    def pytest_collection_modifyitems(items: Items) -> None:
        for item in items:
            if Path(conftest).parent in item.path.parents:
                for ignored in filters:
                    item.add_marker(pytest.mark.filterwarnings(f"ignore:{ignored}"))

    return pytest_collection_modifyitems
