"""`device_transforms` of loaders that are combined with foreign ones: they are for ours alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fit_recorder import STEPS, Recorder
from lightning.pytorch.utilities import CombinedLoader

from lightning_shards import ShardDataModule
from lightning_shards.errors import ConfigError

pytestmark = pytest.mark.usefixtures("held_fork_server")

FOREIGN = [{"image": torch.zeros(2), "label": torch.ones(2)}] * STEPS


def marked(labels: torch.Tensor) -> torch.Tensor:
    return -1 - labels


class Wrapper:
    """What a user may put around a loader."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        return iter(self.loader)


class Combined(ShardDataModule):
    """Its loaders are what `combine` makes of them."""

    combine: Callable[[Any], Any]

    def train_dataloader(self) -> Any:
        return self.combine(super().train_dataloader())

    def val_dataloader(self) -> Any:
        return self.combine(super().val_dataloader())


class Batches(Recorder):
    """Keeps the batches of training and validation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, Any]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append((0, batch))
        return self.layer(torch.ones(1, 16)).sum()

    def on_validation_epoch_start(self) -> None:
        pass

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.seen.append((dataloader_idx, batch))


@pytest.fixture
def seen(make_data, make_trainer):
    """The batches of a fit or validation on combined loaders, with the positions of loaders."""

    def run(combine, verb="fit", kind=Combined, **options):
        data = make_data(kind, device_transforms={"label": marked}, **options)
        data.combine, model = combine, Batches()
        trainer = make_trainer(max_epochs=1, limit_val_batches=0 if verb == "fit" else 1.0)
        getattr(trainer, verb)(model, data)
        return model.seen

    return run


def is_ours(batch: Any) -> bool:
    """Whether it was changed."""
    return bool((batch["label"] < 0).all())


@pytest.mark.parametrize("is_first", [True, False])
def test_of_loaders_one_after_the_other_ours_is_changed(is_first, seen):
    combine = lambda ours: [ours, Wrapper(FOREIGN)][:: 1 if is_first else -1]  # noqa: E731
    batches = seen(combine, "validate")
    assert {(number, is_ours(batch)) for number, batch in batches} == {
        (0, is_first),
        (1, not is_first),
    }


@pytest.mark.parametrize("wrap", [lambda ours: ours, Wrapper])
def test_a_batch_that_combines_those_of_several_loaders_is_refused(wrap, seen):
    with pytest.raises(ConfigError, match=r"combines those of \['\w+', 'Wrapper'\]; leave device_"):
        seen(lambda ours: CombinedLoader([wrap(ours), Wrapper(FOREIGN)], "min_size"))
