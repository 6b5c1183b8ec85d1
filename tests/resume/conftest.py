"""Ranks for chains of fits, and what Lightning says of what tests do."""

from pathlib import Path

import pytest
from chains import Ranks

IGNORED = [  # the first one is its own use of torch 2.13
    "`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",
    "Be aware that when using `ckpt_path`, callbacks used",
    "Checkpoint directory .* exists and is not empty",
    "`.fit.ckpt_path=None.` was called without a model",
    ".fit.ckpt_path=.last.. is set, but there is no last",
    "You defined a `validation_step` but have no `val_datal",
    "You're resuming from a checkpoint that ended before",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for ignored in IGNORED:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{ignored}"))


@pytest.fixture(scope="session")
def ranks(forked_programs):
    """Fits on groups of ranks of any size."""
    return Ranks(forked_programs)
