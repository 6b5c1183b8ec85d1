"""Several evaluation sets: a loader for each, in order, and each sample once in each of them."""

from typing import Any, Final

import lightning.pytorch as pl
import pytest
from fit_recorder import STEPS, Ids, Recorder, all_ids, ids_of

from lightning_shards import (
    EpochDigest,
    LoaderConfig,
    ShardLoader,
    SplitConfig,
    datamodule,
)
from lightning_shards.errors import ConfigError, ShardNotFoundError

pytestmark = pytest.mark.usefixtures("held_fork_server")

WEB, HAND, THIRD = [3, 4], [2, 1, 2], [1]
NAMES: Final = ["val/web", "val/hand", "val/third"]
ONCE: Final = {0: all_ids(WEB), 1: all_ids(HAND), 2: all_ids(THIRD)}


class SetsRecorder(Recorder):
    """Writes down what each validation, test and prediction saw of each set."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[int, Ids]] = []

    def on_validation_epoch_start(self) -> None:
        if not self.trainer.sanity_checking:
            self.seen.append({})

    def _note(self, batch: Any, dataloader_idx: int) -> None:
        if not self.trainer.sanity_checking:
            self.seen[-1].setdefault(dataloader_idx, []).extend(ids_of(batch))

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._note(batch, dataloader_idx)
        self.log("size", float(len(batch["label"])), batch_size=len(batch["label"]))

    def on_test_epoch_start(self) -> None:
        self.seen.append({})

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._note(batch, dataloader_idx)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return batch["label"]


@pytest.fixture(scope="module")
def sets(pack_into, tmp_path_factory):
    """Three sets of unequal sizes; options of all of them can be given."""
    folder = tmp_path_factory.mktemp("sets")
    counts = {"web": WEB, "hand": HAND, "third": THIRD}
    urls = {name: pack_into(folder, count, name) for name, count in counts.items()}
    return lambda **options: {name: SplitConfig(urls[name], **options) for name in counts}


@pytest.fixture
def make_sets(make_data, sets):
    """Makes data modules that validate on the three sets."""
    return lambda **options: make_data(**{"val": None, "val_sets": sets()} | options)


@pytest.mark.parametrize(("reader", "pool"), [("indexed", "processes"), ("stream", "threads")])
def test_every_validation_sees_each_sample_of_each_set_once_with_any_workers(
    reader, pool, make_sets, sets, make_trainer, tmp_path
):
    config = LoaderConfig(cache_dir=str(tmp_path), pool=pool)
    data = make_sets(val_sets=sets(reader=reader), loader=config, num_workers=2)
    model, trainer = (
        SetsRecorder(),
        make_trainer(max_epochs=2, callbacks=[EpochDigest()], enable_checkpointing=False),
    )
    trainer.fit(model, data)
    # two workers of a stream take turns
    assert [{i: sorted(ids) for i, ids in seen.items()} for seen in model.seen] == [ONCE] * 2
    assert len(model.steps) == 2 * STEPS


def test_validate_test_and_predict_read_their_own_sets(make_sets, sets, make_trainer):
    web, hand, _ = sets().values()
    data = make_sets(test_sets={"h": hand, "w": web}, predict_sets={"w": web, "h": hand})
    model, trainer = (
        SetsRecorder(),
        make_trainer(callbacks=[EpochDigest()], enable_checkpointing=False),
    )
    trainer.validate(model, data, verbose=False)
    trainer.test(model, data, verbose=False)
    predicted = trainer.predict(model, data)
    assert model.seen == [ONCE, {0: all_ids(HAND), 1: all_ids(WEB)}]
    sizes = [[len(batch) for batch in batches] for batches in predicted]
    assert sizes == [[2, 2, 2, 1], [2, 2, 1]]


def test_one_set_is_a_list_of_one_loader_and_a_split_is_none(make_sets, sets, make_data):
    loaders = make_sets(val_sets={"web": sets()["web"]}).val_dataloader()
    assert [loader.name for loader in loaders] == ["val/web"]
    assert isinstance(make_data().val_dataloader(), ShardLoader)


def test_names_that_there_are_not_are_refused_with_those_that_there_are(make_sets):
    data = make_sets()
    with pytest.raises(ConfigError, match=r"no 'val' split; .*\['train', 'val/web', "):
        data.loader("val")
    with pytest.raises(ConfigError, match=r"no 'val/other' split; .*'val/web'.*: name one of"):
        data.source("val/other")
    for name, shown in (("vall", "vall"), ("train", "train"), ("val/web", "val/web")):
        with pytest.raises(ConfigError, match=rf"must be one of .'val', .*, got '{shown}'"):
            data.eval_names(name)
    assert data.eval_names("test") == []


@pytest.mark.parametrize("stage", ["fit", "validate"])
def test_an_error_says_which_set_it_is_about(stage, make_sets, sets, make_trainer):
    data = make_sets(val_sets=sets() | {"lost": SplitConfig("nowhere/*.tar")})
    with pytest.raises(ShardNotFoundError, match=r"^val/lost: no file matches"):
        getattr(make_trainer(), stage)(SetsRecorder(), data)


def test_workers_of_later_sets_end_with_their_turn_and_the_first_set_is_made_ahead(
    make_sets, make_trainer
):
    opened: dict[int, list[str]] = {}

    class Watching(SetsRecorder):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            loaders = self.trainer.val_dataloaders
            # who has a stream; no public name says it
            opened[dataloader_idx] = [each.name for each in loaders if each._open is not None]

    make_trainer(num_sanity_val_steps=0, max_epochs=1).fit(Watching(), make_sets())
    assert opened == {0: NAMES[:1], 1: NAMES[:1], 2: NAMES[:1]}  # as the last batch of each sees it


def test_the_ranks_agree_on_all_sets_at_once_and_again_when_one_has_changed(
    make_sets, make_trainer, monkeypatch
):
    asked: list[Any] = []
    monkeypatch.setattr(datamodule, "agree", lambda facts, _: asked.append(facts))
    data = make_sets()

    class Changes(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                urls = data.splits["val/hand"].urls
                data.splits["val/hand"] = SplitConfig(urls, batch_size=1)

    make_trainer(
        callbacks=[Changes()], enable_checkpointing=False, reload_dataloaders_every_n_epochs=1
    ).fit(SetsRecorder(), data)
    facts = [each for each in asked if "the evaluation sets" in each]
    assert [each["the evaluation sets"] for each in facts] == [", ".join(NAMES)] * 2
    assert [each["the batch size of val/hand"] for each in facts] == [2, 1]


def test_a_digest_that_differs_names_the_set(make_sets, make_trainer):
    class Loses(pl.Callback):
        def on_validation_end(self, trainer, pl_module):
            trainer.val_dataloaders[1].served.digest += 1

    trainer = make_trainer(callbacks=[Loses(), EpochDigest()], enable_checkpointing=False)
    with pytest.raises(RuntimeError, match=r"^validation of hand: the samples served to 1 rank"):
        trainer.validate(SetsRecorder(), make_sets(), verbose=False)
