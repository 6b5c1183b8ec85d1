"""A run goes on with other shards at an end of an epoch, if it is allowed to."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import SeenSamples, Snapshots, StopHereError, resumed

from lightning_shards import SplitConfig, StateError

Fit = Callable[..., SeenSamples]
ENDS = {"last batch": ("on_train_batch_end", 4), "end of epoch": ("on_train_epoch_end", 0)}
"""Where a checkpoint is saved: an epoch of 20 samples has 5 steps."""


class Seen(SeenSamples):
    """Keeps the ids of the samples of each epoch; its optimiser counts the steps."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen += [[self.current_epoch, *each] for each in batch["__id__"].tolist()]
        return self.layer(batch["label"][:, None].float()).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.01)

    def on_train_end(self) -> None:
        (optimizer,) = self.trainer.optimizers
        self.updates = {int(weights["step"]) for weights in optimizer.state.values()}


@pytest.fixture
def fit(tmp_path: Path, pack_into: Any, make_module: Any) -> Fit:
    """Fits two epochs of shards with these counts."""

    def fitted(counts: Sequence[int], callbacks: Any = (), **options: Any) -> SeenSamples:
        urls = pack_into(tmp_path / "-".join(map(str, counts)), counts)
        split = SplitConfig(urls, options.pop("sampling", "shuffled"), **options.pop("split", {}))
        checkpoint, data = options.pop("ckpt_path", None), make_module(split, batch_size=4)
        options |= {"callbacks": callbacks, "max_epochs": 2}
        return resumed(tmp_path, checkpoint, data, Seen(), **options)

    return fitted


@pytest.fixture
def saved(tmp_path: Path, fit: Fit) -> Callable[..., str]:
    """The checkpoint of a fit of 20 samples that was stopped there."""

    def made(stop: tuple[str, int], **options: Any) -> str:
        snapshots = Snapshots(tmp_path, stop=stop)
        with pytest.raises(StopHereError):
            fit([5, 9, 6], [snapshots], **options)
        return str(snapshots.saved.popitem()[1])

    return made


@pytest.mark.parametrize(
    "counts", [[5, 9, 6, 8], [5, 9], [6, 8, 6]], ids=["more", "fewer", "alike"]
)
@pytest.mark.parametrize("end", ENDS)
def test_the_next_epoch_is_that_of_the_new_shards(fit, saved, counts, end):
    checkpoint = saved(ENDS[end])
    before, alone = fit([5, 9, 6]), fit(counts)
    model: Any = fit(counts, ckpt_path=checkpoint, allow_new_data=True)
    steps = sum(counts) // 4
    assert [each for each in model.seen if each[0] == 0] == before.seen[:20]
    assert [each for each in model.seen if each[0]] == alone.seen[4 * steps :]
    assert model.updates == {5 + steps}


def test_what_is_left_out_may_change_with_them(fit, saved):
    half = {"exclude": {"hash_of": "key", "of": 2, "parts": [0]}}
    checkpoint = saved(ENDS["end of epoch"])
    model = fit([5, 9, 6, 8], split=half, ckpt_path=checkpoint, allow_new_data=True)
    alone = fit([5, 9, 6, 8], split=half)
    steps = len(alone.seen) // 8
    assert [each for each in model.seen if each[0]] == alone.seen[4 * steps :]


def test_without_leave_they_are_refused(fit, saved):
    checkpoint = saved(ENDS["end of epoch"])
    with pytest.raises(StateError, match=r"other shards: .*ExactResume\(allow_new_data=True\)"):
        fit([5, 9, 6, 8], ckpt_path=checkpoint)


def test_within_an_epoch_they_are_refused(fit, saved):
    checkpoint = saved(("on_train_batch_end", 2))
    with pytest.raises(StateError, match="the checkpoint is of other shards: its epoch has 20 sam"):
        fit([5, 9, 6, 8], ckpt_path=checkpoint, allow_new_data=True)


def test_other_settings_must_be_the_same(fit, saved):
    checkpoint = saved(ENDS["end of epoch"])
    with pytest.raises(StateError, match="was made with shuffle_run=64, this run has 2"):
        fit([5, 9], split={"shuffle_run": 2}, ckpt_path=checkpoint, allow_new_data=True)
