"""The data module for Lightning: four splits and their loaders, on which all ranks agree first.

Where to go on: `build.sources` (what makes batches, and the samples of an epoch), `plan.epoch` (its
steps), `readers.batch_reader` (batches from members), `shards.storage.local` (the bytes of local
ones), `callbacks.resume` and `progress` (where a resumed fit goes on), `shards.scheme_table` (what
reads a URL).
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from inspect import signature
from os import PathLike
from typing import Any, Concatenate, ParamSpec, Self, cast, get_args

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig

from lightning_shards.build.found_shards import (
    find_shards,
    names_of_classes,
    warn_of_other_numbers,
    warn_of_shared_shards,
)
from lightning_shards.build.loaders import describe, facts_of, make_loader
from lightning_shards.build.sources import make_source
from lightning_shards.collectives import agree
from lightning_shards.config.module import (
    DataConfig,
    LoaderConfig,
    module_from_config,
    plain_settings,
)
from lightning_shards.config.splits import (
    SET_SETTINGS,
    SPLITS,
    EvaluationSplit,
    SplitConfig,
    SplitName,
    as_settings,
    kind_of,
    set_of,
)
from lightning_shards.errors import (
    ConfigError,
    ShardError,
    errors_about,
    require_at_least,
    require_choice,
)
from lightning_shards.loader import ShardLoader
from lightning_shards.plan.place import Place, place_if_given
from lightning_shards.progress import (
    EvaluationProgress,
    TrainProgress,
    place_of,
    require_no_finder,
    unless_told_to_end,
)
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.shards.index import ShardIndex
from lightning_shards.stages import (
    STAGE_SPLITS,
    split_of_batch,
    splits_of,
    trainer_stage,
)
from lightning_shards.state import require_state
from lightning_shards.workers.fork_server import fork_server
from lightning_shards.workers.inline import try_first_sample
from lightning_shards.workers.worker_imports import prepare_workers

_P = ParamSpec("_P")

_SPLITS = {*SPLITS, *SET_SETTINGS}
_NOT_OF_SPLITS = [each.name for each in fields(DataConfig) if each.name not in _SPLITS]
_ATTRIBUTES = {"classes": "_classes", "batch_size": "_batch_size", "loader": "loader_config"}
"""Settings that are attributes under other names."""


def settings_differ(before: object, now: object) -> bool:
    """Whether settings are no longer the same, or cannot be compared.

    Arrays and tensors in them have no single answer to `!=`.
    """
    try:
        return bool(before != now)
    except Exception:  # noqa: BLE001 whatever their own `__eq__` raises
        return True


_ANSWERED = (
    "You have overridden `on_after_batch_transfer` in both",  # this one calls the other
    "Couldn't infer the batch indices fetched from your dataloader: `ShardLoader`",  # see `__id__`
)
"""Warnings of Lightning that do not apply here."""


def _with_arguments_of(
    other: Callable[Concatenate[Any, _P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]:
    """Gives a constructor the signature of another one, for type checkers and for jsonargparse."""

    def changed(init: Any) -> Any:
        init.__signature__ = signature(other)
        return init

    return changed


class ShardDataModule(pl.LightningDataModule):
    """Loads WebDataset tar shards for all ranks in lockstep.

    A split is a SplitConfig, a dict of its settings, or only its shards: a pattern or a list.

    Args:
        train: The shards to train on.
        val: The shards to validate on; each sample once over all ranks.
        test: The shards to test on; each sample once over all ranks.
        predict: The shards to predict on; each sample once over all ranks.
        val_sets: Several sets in the place of `val`, by their names, ``{"web": ..., "hand": ...}``;
            each is a split with a loader of its own, in this order.
        test_sets: Several sets in the place of `test`.
        predict_sets: Several sets in the place of `predict`.
        fields: Batch key to member suffixes, the first that a sample has:
            ``{"image": "jpg;png", "label": "cls"}``. With a ``?`` after them, as in ``"cls?"``,
            samples may have none, and the value is None.
        defaults: Batch key to the value of samples that lack an optional field, instead of None;
            it stands for the decoded value.
        decode: Batch key to decoder: its name, such as raw, text, int, class, json, npy, rgb, gray,
            pil, or a callable from bytes to a value (or its import path, or class_path and
            init_args). Default: by suffix.
        classes: Batch key to the names of classes, in the order of their numbers, or to their
            numbers by name, ``{"label": {"cat": 0, "dog": 1}}``, for the decoder ``class``.
            Default: ``classes.json`` beside the shards.
        transforms: Batch key to callable (or its import path, or class_path and init_args), applied
            to each sample; one with a parameter ``rng`` gets a ``numpy.random.Generator`` of its
            own for each sample.
        sample_transforms: Callables from a dict of fields to a dict of fields (or what names them),
            applied to each sample one after the other, before `transforms`; they may add, drop and
            rename fields. ``rng`` as for `transforms`.
        collate_fn: Callable from the list of the samples of a batch (dicts of fields) to the batch,
            or what names it as in `transforms`. Default: tensors stacked, numbers as tensors,
            anything else as lists.
        batch_keys: Reserved entries of a batch that is a dict, of ``__key__``, ``__id__``,
            ``__weight__`` and ``__component__``; an empty list for ``model(**batch)``. Default: all
            that the split has.
        device_transforms: Batch key to callable, applied to the whole batch on the device.
        batch_size: Samples per rank and step.
        num_workers: Worker processes per rank; 0 makes batches in the trainer's own thread.
        seed: Keys every draw, shuffle and random transform.
        batch_format: ``dict``, or ``tuple`` for the fields alone, in their order.
        loader: How batches are made; nothing in it changes a batch.
        allow_unsafe: Names of features that can run code and are allowed: ``pipe`` (URLs that run a
            shell command), ``pickle``, ``pth``, ``ray`` (a cluster without a token).
    """

    fields: dict[str, str]
    transforms: dict[str, Any]
    device_transforms: dict[str, Any]
    collate_fn: Any
    num_workers: int
    loader_config: LoaderConfig
    allow_unsafe: list[str] | None

    @_with_arguments_of(DataConfig.__init__)
    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__()
        data = DataConfig(*given, **settings)
        self.splits = data.splits
        for name in _NOT_OF_SPLITS:
            setattr(self, _ATTRIBUTES.get(name, name), getattr(data, name))
        self._loaders: dict[SplitName, ShardLoader] = {}
        self._settings: dict[SplitName, tuple[object, ...]] = {}
        self._indexes: dict[SplitName, ShardIndex] = {}
        self._found_by: dict[SplitName, tuple[object, ...]] = {}  # settings of each index
        self._agreed: set[SplitName] = set()  # loaders that all ranks have made
        self._failed: Exception | None = None
        self._saved: dict[str, Any] = {}

    @classmethod
    def from_config(cls, config: DictConfig | Mapping[str, Any] | str | PathLike[str]) -> Self:
        """The module that a configuration describes, with the types checked as the CLI does.

        Args:
            config: A DictConfig, a dict or the path of a YAML file, with the arguments as keys. If
                it has a key ``data``, as a config of LightningCLI has, that section is used, and it
                can refer to the rest (``${trainer.devices}``); its ``class_path`` and ``init_args``
                may name a subclass.

        Raises:
            ConfigError: An unknown or missing key, a value of another type, an interpolation that
                leads nowhere, or settings that cannot work.
            FileNotFoundError: There is no such file.
        """
        return module_from_config(cls, config)

    @cached_property  # which a subclass may set
    def class_names(self) -> list[str]:
        """The names of the classes in the order of their numbers, known before `setup`.

        They are those in `classes`, or in the ``classes.json`` beside the shards of `train`, or of
        the first split. Unknown ones, or different ones of two fields, are a ConfigError.
        """
        return names_of_classes(self.data_config())

    @cached_property
    def num_classes(self) -> int:
        """How many classes there are, as for ``link_arguments``; errors as of `class_names`."""
        return len(self.class_names)

    @property
    def batch_size(self) -> int:
        """Samples per rank and step; change it on all ranks, before the next call for a loader."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int) -> None:
        require_at_least("batch_size", batch_size, 1)
        read = splits_of(self.splits, STAGE_SPLITS[trainer_stage(self.trainer) or "fit"][:1])
        for name in read:  # Tuner.scale_batch_size tries
            if (config := self.splits[name]) and config.batch_size:
                raise ConfigError(
                    f"batch_size={batch_size} would change nothing: {name!r} has a batch_size of "
                    f"its own, {config.batch_size}; leave that out of its SplitConfig"
                )
        self._batch_size = batch_size

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Apply `device_transforms`, then the LightningModule's own hook, which this one hides."""
        assert self.trainer is not None  # only a trainer calls hooks
        if self.device_transforms and self.trainer.state.stage is not None:  # else an export
            split = split_of_batch(self.trainer, dataloader_idx, self.splits)
            batch = batch if split is None else self._transformed(batch, split)
        return self.trainer.lightning_module.on_after_batch_transfer(batch, dataloader_idx)

    def _transformed(self, batch: Any, split: SplitName) -> Any:
        """A batch of a split on the device, after `device_transforms`."""
        config = self.splits.get(split)
        fields = config.batch_names(self.fields) if config else list(self.fields)
        is_collated = ((config and config.collate_fn) or self.collate_fn) is not None
        for name, transform in self.device_transforms.items():
            if isinstance(batch, dict) and name in batch:
                batch[name] = transform(batch[name])
            elif name in fields and isinstance(batch, list | tuple) and not is_collated:
                number = fields.index(name)
                batch = (*batch[:number], transform(batch[number]), *batch[number + 1 :])
            elif name in fields:
                kind = type(cast("object", batch)).__name__
                raise ConfigError(
                    f"device_transforms names {name!r}, and the batch, a {kind}, has no such "
                    "entry: collate_fn, a sample transform or a hook made it so; let these keep "
                    "the entry in a dict, or leave it out of device_transforms"
                )
        return cast("Any", batch)

    def _config(self, split: SplitName) -> SplitConfig:
        """The settings of a split, with the defaults filled in."""
        return self.data_config().split(split)

    def data_config(self) -> DataConfig:
        """The settings of this module as they are now, checked: any of them may be changed."""
        given = {name: getattr(self, _ATTRIBUTES.get(name, name)) for name in _NOT_OF_SPLITS}
        return DataConfig(**as_settings(self.splits), **given)

    def __repr__(self) -> str:
        """The splits as they were given; nothing is counted or opened for it."""
        splits = [name for name, config in self.splits.items() if config is not None]
        first = f"{type(self).__name__}: batches of {', '.join(self.fields)}"
        return "\n".join([first, *(f"{name}: {self._config(name).summary}" for name in splits)])

    __str__ = __repr__  # Lightning's own needs loaders that have a `dataset`

    def prepare_data(self) -> None:
        """Count the samples, once per node; the counts are kept in the cache for all ranks."""
        self._guarded(lambda split: self.source(split).prepare(), self._wanted_splits())

    def setup(self, stage: str) -> None:
        """Find the shards and their counts on this rank."""
        self._agreed.clear()
        for answered in _ANSWERED:
            warnings.filterwarnings("ignore", message=answered)
        if stage == "validate" and not is_overridden("val_dataloader", self):
            self._config("val")  # otherwise Lightning would ask for a val_dataloader method
        if stage == "fit" and self.trainer is not None:
            self._forget_checkpoint(self.trainer)
            for logger in self.trainer.loggers:
                logger.log_hyperparams({"data": plain_settings(self.data_config())})
        self._guarded(self._index, self._wanted_splits(stage))
        if self.trainer and self.loader_config.needs_server(self.num_workers) and not self._failed:
            prepare_workers(map(self.source, self._wanted_splits(stage)))

    def train_dataloader(self) -> ShardLoader:
        """The loader of `train`; all ranks ask together, first and after a change."""
        return self._agreed_loaders(["train"])[0]

    @property
    def val_dataloader(self) -> Callable[[], ShardLoader | list[ShardLoader]]:  # pyright: ignore[reportIncompatibleMethodOverride] a property that gives a method
        """Gives the loader of `val`, or those of `val_sets`; all ranks ask together.

        Where there is no `val`, it is Lightning's own, which Lightning takes for none: of a method
        that it finds here it would require a `validation_step` of the model.
        """
        is_overridden_here = type(self).val_dataloader is not ShardDataModule.val_dataloader
        if self.eval_names("val") or is_overridden_here:  # by a class that calls this one
            return partial(self._evaluation_loaders, "val")
        return partial(pl.LightningDataModule.val_dataloader, self)

    def test_dataloader(self) -> ShardLoader | list[ShardLoader]:
        """The loader of `test`, or those of `test_sets`; all ranks ask together, as for `train`."""
        return self._evaluation_loaders("test")

    def predict_dataloader(self) -> ShardLoader | list[ShardLoader]:
        """The loader of `predict`, or those of `predict_sets`; all ranks ask together."""
        return self._evaluation_loaders("predict")

    def eval_names(self, split: EvaluationSplit) -> list[SplitName]:
        """The names of the evaluation sets of a split, in the order of their `dataloader_idx`.

        They are ``["val/web", "val/hand"]`` for ``val_sets={"web": ..., "hand": ...}``, ``["val"]``
        for `val`, and none if there is neither. `loader`, `peek` and `source` take them.
        """
        require_choice("the split of eval_names", split, get_args(EvaluationSplit))
        return splits_of(self.splits, (split,))

    def state_dict(self) -> dict[str, Any]:
        """The values that a resumed run must agree with: plain, and equal on all ranks."""
        require_no_finder(self.trainer)
        loader = self._loaders.get("train")
        return self._saved if loader is None else loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state, and compare it with the train loader of this fit once there is one."""
        self._saved = require_state(state_dict, type(self).__name__)
        if "train" in self._agreed and self.trainer and self.trainer.state.fn == TrainerFn.FITTING:
            self._check_saved(self._loaders["train"])

    def teardown(self, stage: str) -> None:
        """End the workers."""
        self._close()

    def on_exception(self, exception: BaseException) -> None:
        """End the workers; Lightning calls no teardown after an exception."""
        self._close()

    def loader(
        self, split: SplitName, *, rank: int | None = None, world_size: int | None = None
    ) -> ShardLoader:
        """A loader of any rank without a Trainer; counts that are missing are made here.

        It gives batches on the CPU. The training loop has to move them and to apply
        `device_transforms`.

        Args:
            split: ``train``, ``val``, ``test`` or ``predict``; or a set, as in ``val/web``.
            rank: Data-parallel rank. Without it the loader is for a single process, and refuses to
                give batches in a process group.
            world_size: Number of data-parallel ranks.

        Raises:
            ShardError: Only one of the two numbers is given, the split is not configured, its
                shards cannot be found or counted, or they hold too few samples for one step.
        """
        source = self.source(split, ranks=world_size or 1)
        return self._make_loader(split, source, place_if_given(rank, world_size))

    def peek(self, split: SplitName = "train") -> Any:
        """The first batch of a split, made here without workers; nothing is used up.

        It is that of a single rank, before `device_transforms`.

        Raises:
            ShardError: It cannot be made.
        """
        source = self.source(split)
        with make_loader(source, Place(), self.loader_config, 0, name=split) as loader:
            return next(iter(loader))

    def source(self, split: SplitName, index: ShardIndex | None = None, ranks: int = 1) -> Source:
        """The source of a split, of `index` or its own shards; `ranks` of a node without trainer.

        Raises:
            ShardError: The split is not configured, or its settings do not go with its shards.
        """
        shards = self._index(split) if index is None else index
        there = (self.trainer.num_devices, self.trainer.num_nodes) if self.trainer else (ranks, 1)
        return make_source(self.data_config(), split, shards, *there)

    def _wanted_splits(self, stage: str | None = None) -> list[SplitName]:
        stage = stage or trainer_stage(self.trainer)
        return splits_of(self.splits, STAGE_SPLITS[stage] if stage is not None else SPLITS)

    def _guarded(self, find: Callable[[SplitName], object], splits: Sequence[SplitName]) -> None:
        """Keep a failure until all ranks meet, because they wait in a barrier after the hook."""
        try:
            for split in splits:
                with errors_about(set_of(split) and split, ShardError):
                    find(split)
        except Exception as error:
            if self.trainer is None or self.trainer.world_size == 1:
                raise
            self._failed = self._failed or error

    def _evaluation_loaders(self, split: EvaluationSplit) -> ShardLoader | list[ShardLoader]:
        names = self.eval_names(split)
        loaders = self._agreed_loaders(names or [split])
        return loaders if any(map(set_of, names)) else loaders[0]

    def _agreed_loaders(self, names: Sequence[SplitName]) -> list[ShardLoader]:
        if self.trainer is None:  # called by the user, in a notebook for instance
            return list(map(self.loader, names))
        error, self._failed = self._failed, None
        loaders: dict[SplitName, ShardLoader] = {}
        if error is None:
            try:
                with unless_told_to_end(self.trainer):
                    for name in names:
                        with errors_about(set_of(name) and name, ShardError):
                            loaders[name] = self._current_loader(name, self.trainer)
            except Exception as caught:  # noqa: BLE001 raised below, by all ranks together
                error = caught
        if not self._agreed.issuperset(names):  # else a rank may ask alone
            agree(facts_of(loaders), error)
        elif error is not None:
            raise error  # the other ranks find their loaders agreed on, and none of them waits here
        self._agreed.update(names)
        return list(loaders.values())

    def _current_loader(self, split: SplitName, trainer: pl.Trainer) -> ShardLoader:
        """The loader made before, or a new one if a setting that it depends on has changed."""
        progress = self._loaders[split].progress if split in self._loaders else None
        if isinstance(progress, TrainProgress) and progress.has_begun:
            self._saved = {}  # it was compared with the loader that the fit began with
        place, source = place_of(trainer), self.source(split)
        if cast("Any", trainer).overfit_batches > 0:  # the same batches in every epoch
            source = source.with_epochs(replace(source.epochs, pinned=True))
        settings = (trainer, place, source, self.num_workers, self.loader_config)
        is_new = settings_differ(self._settings.get(split), settings)
        if is_new:
            self._agreed.discard(split)  # all ranks make another one, and agree on it
            sample = try_first_sample(source, place)  # a wrong field raises here, on all ranks
            loader = self._make_loader(split, source, place, trainer, sample)
            if split in self._loaders:
                self._loaders[split].close()
            self._loaders[split] = loader
            self._settings[split] = settings
        loader = self._loaders[split]
        if split == "train":
            self._check_saved(loader)
        if is_new:
            about = (split, source, place.world_size, loader.pool.describe())
            rank_zero_info(describe(*about, epoch=loader.epoch))
        return loader

    def _make_loader(
        self,
        split: SplitName,
        source: Source,
        place: Place | None,
        trainer: pl.Trainer | None = None,
        sample: LoadedBatch | None = None,
    ) -> ShardLoader:
        given: dict[str, Any] = {"allow_unsafe": self.allow_unsafe or ()}
        if trainer is not None:
            progress = TrainProgress(trainer) if split == "train" else EvaluationProgress(trainer)
            on_cuda = trainer.strategy.root_device.type == "cuda"
            given |= {"progress": progress, "on_cuda": on_cuda}
        settings = (source, place, self.loader_config, self.num_workers)
        loader = make_loader(*settings, name=split, sample=sample, **given)
        # of several sets one at a time has workers, and the first one those of the next time
        first = splits_of(self.splits, [kind_of(split)])[0]
        loader.keeps_workers = trainer is None or split == first
        return loader

    def _index(self, split: SplitName) -> ShardIndex:
        data = self.data_config()
        config = replace(data.split(split), batch_size=None)  # which the tuner changes
        given = (config, data.loader, data.allow_unsafe)
        if settings_differ(self._found_by.get(split), given):
            self._indexes[split] = find_shards(data, split)
            self._found_by[split] = given
            if self.trainer is None or not self.trainer.local_rank:
                warn_of_other_numbers(split, self._indexes)
                warn_of_shared_shards(split, self._indexes)
        return self._indexes[split]

    def _check_saved(self, loader: ShardLoader) -> None:
        """Compare a checkpoint with the train loader of this run."""
        self._saved = cast("TrainProgress", loader.progress).accepted(loader, self._saved)

    def _forget_checkpoint(self, trainer: pl.Trainer) -> None:
        """Forget the checkpoint of an earlier fit, which says nothing about this one."""
        self._saved = {}
        if "train" in self._loaders:
            self._loaders["train"].progress = TrainProgress(trainer)

    def _close(self) -> None:
        for loader in self._loaders.values():
            loader.close()
        self._failed = None  # of a fit that ended before all ranks met
        fork_server.end_unused()
