"""The proof at each epoch's end: right runs are proven in one line, and no wrong one is."""

from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest

from lightning_shards import EpochDigest, ExactResume, LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.callbacks import digest as digest_module
from lightning_shards.errors import DigestError, SampleError, count_of
from lightning_shards.plan.digest import digest_ids
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.samples.collate import BadSample
from tests.callbacks.quiet_fits import EvaluatedWeight, quiet_trainer

pytestmark = pytest.mark.usefixtures("held_fork_server")

COUNTS = [5, 0, 9, 7]
SAMPLES = sum(COUNTS)


@pytest.fixture
def make_data(pack_shards, make_module):
    urls = pack_shards(COUNTS)

    def make(split=None, **options):
        splits = dict.fromkeys(("val", "test", "predict"), SplitConfig(urls))
        train = SplitConfig(urls, **{"sampling": "shuffled"} | (split or {}))
        loader = LoaderConfig(multiprocessing_context="fork")
        return make_module(train, loader=loader, **splits, **{"batch_size": 4} | options)

    return make


@pytest.fixture
def make_trainer(tmp_path):
    def make(*callbacks: pl.Callback, **options: Any) -> pl.Trainer:
        return quiet_trainer(tmp_path, [EpochDigest(), *callbacks], **{"max_epochs": 2} | options)

    return make


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("remainder", ["drop", "pad", "balanced"])
@pytest.mark.parametrize("sampling", ["shuffled", "sequential"])
def test_each_epoch_is_proven_by_one_line(
    sampling, remainder, num_workers, make_data, make_trainer, said
):
    model = EvaluatedWeight()
    split = {"sampling": sampling, "remainder": remainder}
    make_trainer().fit(model, make_data(split, num_workers=num_workers, batch_size=4))
    steps = SAMPLES // 4 if remainder == "drop" else -(-SAMPLES // 4)
    served = steps * 4 if remainder == "drop" else SAMPLES
    assert list(said()) == ["epoch 0", "epoch 1"]
    for line in said().values():
        assert line.startswith(f"{served} samples in {steps} steps of 1 rank, as the order says")


def test_the_line_names_the_digest_of_what_the_model_was_given(make_data, make_trainer, said):
    model = EvaluatedWeight()
    make_trainer(max_epochs=1).fit(model, make_data())
    digest = digest_ids(np.array(model.ids))
    assert said()["epoch 0"].endswith(f"(digest {digest:016x})")


def test_a_batch_without_ids_is_proven_too(make_data, make_trainer, said):
    make_trainer(limit_val_batches=0).fit(EvaluatedWeight(), make_data(batch_format="tuple"))
    assert len(said()) == 2


@pytest.mark.parametrize(
    ("split", "is_proven"),
    [
        ({"sampling": "resampled", "reader": "indexed"}, True),
        ({"sampling": "resampled", "reader": "stream"}, False),  # whose draws have no order
        ({"reader": "stream", "remainder": "balanced"}, True),
        ({"reader": "stream", "remainder": "drop"}, False),
    ],
)
def test_what_is_served_is_proven_where_it_is_known(
    split, is_proven, make_data, make_trainer, said
):
    make_trainer().fit(EvaluatedWeight(), make_data(split))
    assert ["as the order says" in line for line in said().values()] == [True, True] * is_proven


@pytest.mark.parametrize(
    ("options", "samples"),
    [({"limit_train_batches": 3}, 12), ({"max_steps": 2}, 8), ({"overfit_batches": 1}, 4)],
)
def test_an_epoch_that_ends_early_is_proven_as_far_as_it_went(
    options, samples, make_data, make_trainer, said
):
    make_trainer(**options).fit(EvaluatedWeight(), make_data())
    steps = count_of(samples // 4, "step")
    assert said()["epoch 0"].startswith(f"{samples} samples in {steps} of")


def test_a_resumed_epoch_is_proven_from_where_it_was_resumed(
    make_data, make_trainer, said, tmp_path
):
    first = make_trainer(ExactResume(), max_steps=2)
    first.fit(EvaluatedWeight(), make_data())
    first.save_checkpoint(tmp_path / "saved.ckpt")
    second = make_trainer(ExactResume())
    second.fit(EvaluatedWeight(), make_data(batch_size=2), ckpt_path=tmp_path / "saved.ckpt")
    assert said()["epoch 0"].startswith("12 samples in 6 steps of 1 rank from sample 8 on, as")
    assert said()["epoch 1"].startswith("20 samples in 10 steps of 1 rank, as")


# --- looks at batches -----------------------------------------------------------------------------


class Look(pl.Callback):
    """Looks at a batch of the train loader and at one of each val loader, in one hook."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, self._look)

    def _look(self, trainer: pl.Trainer, *arguments: Any) -> None:
        if not trainer.sanity_checking and arguments[3:] in [(), (5,)]:  # after the last batch
            for loader in [trainer.train_dataloader, trainer.val_dataloaders]:
                next(iter(loader))


LOOKS = ["on_train_start", "on_validation_start", "on_validation_end", "on_train_epoch_end"]


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, 5), ({"limit_train_batches": 1, "limit_val_batches": 1}, 1), ({"max_steps": 2}, 2)],
)
@pytest.mark.parametrize("hook", LOOKS)
def test_a_look_at_a_batch_is_not_taken_for_the_epoch(
    hook, options, steps, make_data, make_trainer, said
):
    trainer = make_trainer(Look(hook), **options)
    trainer.callbacks.reverse()  # it looks before the proof, where that is in the same hook
    trainer.fit(EvaluatedWeight(), make_data())
    told = f"{4 * steps} samples in {count_of(steps, 'step')} of 1 rank, as the order says"
    assert said()["epoch 0"].startswith(told)
    assert list(said()) == ["epoch 0", "epoch 1"][: 1 if "max_steps" in options else 2]


# --- wrong runs -----------------------------------------------------------------------------------


def lost(made):
    """The first sample is not in the batch, and the last one twice."""
    ids = made.batch["__id__"]
    return made._replace(digest=digest_ids(np.concatenate([ids[-1:], ids[1:]])))


def exchanged(made):
    """Shards and samples have each other's numbers."""
    return made._replace(digest=digest_ids(made.batch["__id__"][:, ::-1]))


def spoil_sources(monkeypatch, spoil, **changes):
    """The batches of each source are what `spoil` makes of them."""
    plain = ShardDataModule.source

    class SpoiltSource(IndexedSource):
        def batches(self, place, cursor, arena=None):
            yield from map(spoil, super().batches(place, cursor, arena))

    def source(self, split, index=None):
        return SpoiltSource(**vars(plain(self, split, index)) | changes)

    monkeypatch.setattr(ShardDataModule, "source", source)


@pytest.mark.parametrize("spoil", [lost, exchanged])
def test_other_samples_than_planned_end_the_fit(spoil, make_data, make_trainer, monkeypatch, said):
    spoil_sources(monkeypatch, spoil)
    with pytest.raises(DigestError, match=r"epoch 0: the samples .* not those of the order"):
        make_trainer(limit_val_batches=0).fit(
            EvaluatedWeight(), make_data({"remainder": "balanced"})
        )
    assert said() == {}


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_other_samples_than_planned_end_an_evaluation(stage, make_data, make_trainer, monkeypatch):
    getattr(make_trainer(), stage)(EvaluatedWeight(), make_data())
    spoil_sources(monkeypatch, lost)
    name = {"validate": "validation", "predict": "prediction"}.get(stage, stage)
    with pytest.raises(DigestError, match=f"{name}: the samples"):
        getattr(make_trainer(), stage)(EvaluatedWeight(), make_data())


def test_a_checkpoint_of_a_wrong_epoch_is_not_written(
    make_data, make_trainer, monkeypatch, tmp_path
):
    spoil_sources(monkeypatch, lost)
    saver = pl.callbacks.ModelCheckpoint(tmp_path / "saved", every_n_epochs=1)
    trainer = make_trainer(saver, enable_checkpointing=True, limit_val_batches=0)
    with pytest.raises(DigestError):
        trainer.fit(EvaluatedWeight(), make_data())
    assert not (tmp_path / "saved").exists() or not list((tmp_path / "saved").iterdir())


@pytest.mark.parametrize("field", ["begin", "samples", "steps"])
def test_ranks_that_are_not_in_step_are_named(field, make_data, make_trainer, monkeypatch):
    monkeypatch.setattr(
        digest_module, "gather", lambda part: [part, part._replace(rank=1, **{field: 77})]
    )
    with pytest.raises(DigestError, match=rf"rank 0 has {field}=.*, rank 1 has 77"):
        make_trainer().validate(EvaluatedWeight(), make_data())


def test_processes_that_share_a_rank_count_once(make_data, make_trainer, monkeypatch, said):
    monkeypatch.setattr(digest_module, "gather", lambda part: [part, part])
    make_trainer().fit(EvaluatedWeight(), make_data())
    assert "of 1 rank, as the order says" in said()["epoch 1"]


# --- bad samples ----------------------------------------------------------------------------------


def bad(made):
    """The first sample cannot be read, and has a substitute."""
    ids = made.batch["__id__"]
    told = (BadSample(*ids[0].tolist(), "SampleError"),)
    return made._replace(digest=digest_ids(ids[1:]), bad=told)


def test_bad_samples_are_counted_in_the_line(make_data, make_trainer, monkeypatch, said):
    spoil_sources(monkeypatch, bad, max_bad=5)
    make_trainer(limit_val_batches=0).fit(EvaluatedWeight(), make_data())
    assert "as the order says" in said()["epoch 1"]
    assert said()["epoch 1"].endswith(
        "; 5 samples (5 SampleError) could not be read and were replaced"
    )


def test_more_bad_samples_than_allowed_on_all_ranks_end_the_fit(
    make_data, make_trainer, monkeypatch
):
    spoil_sources(monkeypatch, bad, max_bad=9)
    monkeypatch.setattr(digest_module, "gather", lambda part: [part, part._replace(rank=1)])
    with pytest.raises(SampleError, match=r"10 samples \(10 SampleError\).*max_bad=9"):
        make_trainer(limit_val_batches=0).fit(EvaluatedWeight(), make_data())
