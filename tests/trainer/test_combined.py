"""`device_transforms` of loaders that are combined with foreign ones: they are for ours alone."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from fit_recorder import STEPS, VAL_STEPS, Recorder
from lightning.pytorch.utilities import CombinedLoader

from lightning_shards import ShardDataModule
from lightning_shards.errors import ConfigError

pytestmark = pytest.mark.usefixtures("held_fork_server")

FOREIGN = [{"image": torch.zeros(2), "label": torch.ones(2)}] * STEPS
PAIRS = [(torch.zeros(2), torch.ones(2))] * STEPS


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
    labels = batch["label"] if isinstance(batch, dict) else batch[1]
    return bool((labels < 0).all())


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "a dict": lambda ours, other: {"other": other, "shards": ours},
    "a list": lambda ours, other: [other, ours],
    "nested": lambda ours, other: {"all": [other, ours], "more": (other,)},
}


def parts_of(batch: Any) -> tuple[Any, Any]:
    batch = batch["all"] if isinstance(batch, dict) and "all" in batch else batch
    first, second = batch.values() if isinstance(batch, dict) else batch
    return first, second


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("verb", "batch_format"), [("fit", "tuple"), ("validate", "dict")])
def test_the_part_of_our_loader_is_changed_and_no_other(way, verb, batch_format, seen):
    other = FOREIGN if batch_format == "dict" else PAIRS
    combine = lambda ours: CombinedLoader(way(ours, Wrapper(other)), "min_size")  # noqa: E731
    batches = seen(combine, verb, batch_format=batch_format)
    assert len(batches) == (STEPS if verb == "fit" else VAL_STEPS)
    for _, batch in batches:
        assert type(batch) is type(way(0, 0))
        assert [is_ours(part) for part in parts_of(batch)] == [False, True]


def test_a_part_of_a_loader_that_is_exhausted_is_left_alone(seen):
    more = Wrapper(FOREIGN)
    combine = lambda ours: CombinedLoader([ours, more], "max_size")  # noqa: E731
    batches = [batch for _, batch in seen(combine, "validate")]
    assert [ours is not None and is_ours(ours) for ours, _ in batches] == [True] * 4 + [False] * 6
    assert not any(is_ours(other) for _, other in batches)


@pytest.mark.parametrize("is_first", [True, False])
def test_of_loaders_one_after_the_other_ours_is_changed(is_first, seen):
    combine = lambda ours: [ours, Wrapper(FOREIGN)][:: 1 if is_first else -1]  # noqa: E731
    batches = seen(combine, "validate")
    assert {(number, is_ours(batch)) for number, batch in batches} == {
        (0, is_first),
        (1, not is_first),
    }


def test_wrappers_of_which_none_is_known_are_refused(seen):
    for way in WAYS.values():
        with pytest.raises(ConfigError, match=r"none of .* a ShardLoader, but \['Wrapper'.*super"):
            seen(lambda ours, way=way: way(Wrapper(ours), Wrapper(FOREIGN)))


def test_a_batch_that_a_hook_has_flattened_goes_by_its_names(seen):
    class Flattened(Combined):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return {"other": batch["other"], "label": batch["shards"]["label"]}

    combine = partial(WAYS["a dict"], other=Wrapper(FOREIGN))
    batches = seen(lambda ours: CombinedLoader(combine(ours), "min_size"), kind=Flattened)
    assert all(is_ours(batch) and not is_ours(batch["other"]) for _, batch in batches)
