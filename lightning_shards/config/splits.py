"""The settings of a split and of the components of its mix, and the names of splits and sets.

The layers below the configuration take plain arguments. Each set has a name by which everything
knows it: `val/web` is the set `web` of `val_sets`. So what is kept for each split is kept for each
set too, and no code needs to know which of the two it has.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from lightning_shards.config.parsing import with_known_names
from lightning_shards.config.settings import ShardSettings, put
from lightning_shards.errors import ConfigError, count_of, errors_about
from lightning_shards.plan.mixture_schedule import WeightChange

Split = Literal["train", "val", "test", "predict"]
SPLITS: Final[tuple[Split, ...]] = get_args(Split)

_MOST_WEIGHT: Final = 1_000_000  # of a class


@dataclass(frozen=True)
class BatchAlikeConfig:
    """Samples of like size in one batch, so that it needs little padding.

    Args:
        field: The field whose members are compared by their sizes in bytes.
        group: Samples of like size that stand together: the global batch, as a rule.
    """

    field: str
    group: int


WeightChangeConfig = WeightChange  # its public name


@dataclass(frozen=True, kw_only=True, repr=False)
class ComponentConfig(ShardSettings):
    """One data set of a mixture; what it leaves out it takes from its split.

    What it has stands in the place of what the split has. `exclude` and `keep` are either those of
    the split or those of its components.

    Args:
        urls: Shards, as those of a split; needed.
        weight: Its share of each round, a number in proportion to the weights of the other
            components; 0 leaves it out for now.
        passes: Instead of a weight: how often it is passed while the other components are passed
            as often as theirs say.
        sampling: As of a split; it says how often and in which order its own samples come.
        fields: Batch key to member suffixes; overrides the split's for this component.
        defaults: Batch key to the value of samples that lack an optional field.
        decode: Batch key to decoder.
        classes: Batch key to the names of classes, in the order of their numbers, or to numbers by
            name.
        transforms: Batch key to callable, its import path, or class_path and init_args.
        sample_transforms: Callables from a dict of fields to a dict of fields, or what names them
            as in `transforms`; overrides the split's for this component.
        stages: Callables from an iterator of samples to an iterator of samples, or what names them
            as in `transforms`; overrides the split's for this component.
        shuffle_buffer: Stream reader: samples that webdataset's shuffle holds; overrides the
            split's for this component.
        shuffle_run: Indexed reader: samples kept together when shards are mixed; overrides the
            split's for this component.
        shuffle_block: Indexed reader: samples shuffled together; overrides the split's for this
            component.
        shuffle_strands: Indexed reader: strands that its runs are dealt out to; overrides the
            split's for this component.
        shuffle_width: Consecutive samples of one strand; overrides the split's for this component.
        exclude: Samples to leave out, as those of a split, which has none then.
        keep: Samples to keep, as those of a split, which has none then.
        join: Batch key to a table whose column becomes a field, as those of a split.
        index: The folder of the counts and member tables of its shards, as that of a split.
    """

    weight: Any = None  # a number; as a float jsonargparse would read the text 3:1 as 181
    passes: Any = None

    def overrides(self) -> dict[str, Any]:
        """The settings of a split that it has itself, by name."""
        given = {each.name: getattr(self, each.name) for each in fields(ShardSettings)}
        return {name: value for name, value in given.items() if value is not None}

    def check(self) -> None:
        """As of all settings; it needs shards."""
        super().check()
        self.require_urls()


_NEEDED: Final = {
    "join": "the indexed reader, which knows samples by their numbers",
    "batch_alike": "the indexed reader, which can move samples, and one data set",
    "balance": "the indexed reader, one data set and sampling='resampled'",
    "shuffle_strands": "the indexed reader, sampling='shuffled' and runs",
}
"""What settings need that the stream reader has not."""


@with_known_names
@dataclass(frozen=True, kw_only=True, repr=False)
class SplitConfig(ShardSettings):
    """What to read for one split, and how it is cut into steps.

    Args:
        urls: Shards: paths or URLs with braces, local wildcards, ``::`` between several; or a
            list. A split has these or a `mix`.
        sampling: ``resampled`` draws with replacement, ``shuffled`` gives each sample once
            in a new order each epoch, ``sequential`` in file order. Default: resampled for train,
            sequential for the others.
        reader: ``stream`` reads whole shards forward; ``indexed`` reads samples by their offsets,
            in an order that neither ranks nor workers change, and remote shards need member tables
            beside them for it. ``auto`` streams what has stages, or is remote without such tables.
        dataset_size: Samples of an epoch. Needed where no counts are known, unless the one remote
            folder of the shards has open_clip's ``__len__``; under ``resampled`` it may differ from
            the counts, as an epoch is nominal there.
        remainder: Samples that fill no whole step: ``drop`` them, ``pad`` with repeats of weight 0,
            or ``balanced``: smaller batches of nearly equal size. Default: drop for train, balanced
            for the others.
        batch_size: Samples per rank and step; overrides the module's for this split.
        fields: Batch key to member suffixes; overrides the module's for this split.
        defaults: Batch key to the value of samples that lack an optional field; overrides the
            module's for this split.
        decode: Batch key to decoder; overrides the module's for this split.
        classes: Batch key to the names of classes, in the order of their numbers, or to their
            numbers by name; overrides the module's for this split.
        transforms: Batch key to callable, its import path, or class_path and init_args; overrides
            the module's for this split.
        sample_transforms: Callables from a dict of fields to a dict of fields, or what names them
            as in `transforms`; overrides the module's for this split.
        collate_fn: Callable from the list of the samples of a batch to the batch, or what names it
            as in `transforms`; overrides the module's for this split.
        batch_keys: Reserved entries of a batch; overrides the module's for this split.
        join: Batch key to a table whose column becomes a field, matched by keys: Parquet files or
            tars, or a dict of table, key, column and missing (``none`` or ``raise``).
        stages: Callables from an iterator of samples to an iterator of samples, or what names them
            as in `transforms`; run after the fields are decoded.
        shuffle_buffer: Stream reader: samples that webdataset's shuffle holds; 0 for none. Default:
            1000.
        shuffle_run: Indexed reader: samples kept together when shards are mixed; 0: whole shards.
        shuffle_block: Indexed reader: samples shuffled together.
        shuffle_strands: Indexed reader, ``shuffled``: of 2 and more each run is of one strand for
            ever, so that each of several nodes reads its own runs; a multiple of their number.
        shuffle_width: Consecutive samples of one strand; the ranks of a node times their batch size
            give it whole strands. Without strands it has no effect.
        batch_alike: Indexed reader: a field, and the samples of like size that stand together, so
            that batches need little padding.
        on_bad_sample: ``raise`` says which sample is bad; ``substitute`` puts another one in its
            place, with ``__weight__`` 0, and counts it.
        max_bad: Bad samples of an epoch, over all ranks, that ``substitute`` may replace.
        balance: Under ``resampled``: a field, or a join, whose value is the class of a sample, one
            int or a name. Each draw takes a class, and then one of its samples.
        balance_weights: Weights of classes by name, or by number where they have no names. Default,
            and that of classes that it leaves out: 1. Of 0: the class is not drawn.
        exclude: Samples to leave out: a text file with one key a line (or several such files), or
            parts by hash as for `keep`.
        keep: Samples to keep: parts by hash as in ``{hash_of: key, of: 20, parts: [0]}``, or a
            function from the ``ShardColumns`` of a shard to an array of bools, or what names it as
            in `transforms`.
        mix: Instead of `urls`: several data sets to train on, by names, which key their orders.
            Each round holds exactly so many samples of each as its weight says.
        round: Units in which the weights hold exactly. Default: the least number in which they are
            whole, at most 4,096.
        unit: Consecutive samples of one component; a multiple of the batch size makes batches of
            one component each.
        epoch_of: Instead of `dataset_size`: the component of which an epoch of the mix is one pass,
            or ``shortest`` or ``longest``, for the one whose pass ends first or last.
        temperature: Instead of weights and passes: a component weighs its samples to this power,
            from 0 (all alike) to 1 (by samples).
        schedule: Changes of the weights of the mix at later points of the run, in their order.
        index: Of remote shards beside which nothing can be written: the folder of this machine in
            which ``lightning-shards index ... --output`` has put their counts and member tables.
    """

    reader: Literal["auto", "stream", "indexed"] = "auto"
    dataset_size: int | None = None
    remainder: Literal["drop", "pad", "balanced"] | None = None
    batch_size: int | None = None
    collate_fn: Any = None
    batch_keys: list[str] | None = None
    stages: list[Any] = field(default_factory=list[Any])
    shuffle_run: int = 64
    shuffle_block: int = 16_384
    shuffle_strands: int = 1
    shuffle_width: int = 2_048
    batch_alike: BatchAlikeConfig | None = None
    on_bad_sample: Literal["raise", "substitute"] = "raise"
    max_bad: int = 0
    balance: str | None = None
    balance_weights: dict[str, Any] | None = None
    mix: dict[str, ComponentConfig] | None = None
    round: int | None = None
    unit: int = 1
    epoch_of: str | None = None
    temperature: float | None = None
    schedule: list[WeightChangeConfig] = field(default_factory=list[WeightChangeConfig])

    def __post_init__(self) -> None:
        """Refuse settings that are wrong whatever the shards hold.

        Raises:
            ConfigError: A setting is wrong; the message names it, its value and the remedy.
        """
        self.check()
        self._require_mix(self.mix) if self.mix else self._require_no_mix()
        if (self.on_bad_sample == "substitute") != (self.max_bad > 0):
            raise ConfigError(
                f"max_bad={self.max_bad} does not go with on_bad_sample={self.on_bad_sample!r}: "
                "'substitute' needs the most bad samples that an epoch may have over all ranks, at "
                "least 1, and 'raise' takes 0; change one of them"
            )
        for name, weight in (self.balance_weights or {}).items():
            is_weight = isinstance(weight, int | float) and 0 <= weight <= _MOST_WEIGHT
            if self.balance is None or not is_weight:
                raise ConfigError(
                    f"balance_weights has {name!r}: {weight!r}; write numbers from 0 (never drawn) "
                    f"to {_MOST_WEIGHT:,}, and name the field of the classes in balance"
                )
        self._require_indexed()

    @property
    def _mixed(self) -> list[ComponentConfig]:
        return list((self.mix or {}).values())

    def _require_indexed(self) -> None:
        """Take the indexed reader for settings that need it, and refuse what they do not go with.

        Strands of a mix are those of each component, whose settings are asked by themselves.
        """
        mix = "" if self.mix is None else "a mix"
        stages = self.stages or any(part.stages for part in self._mixed)
        stream = "stages" if stages else "reader='stream'" if self.reader == "stream" else ""
        sampling = f"sampling={self.sampling!r}"
        drawn = "" if self.sampling in (None, "resampled") else sampling
        runs = "" if self.shuffle_run else "shuffle_run=0"
        runs = runs if self.sampling == "shuffled" else sampling
        alike = "batch_alike" if self.batch_alike else ""
        joined = [name for part in (self, *self._mixed) for name in part.join or ()]
        strands = 0 if mix or self.shuffle_strands == 1 else self.shuffle_strands
        for name, value, others in (
            ("join", joined, [stream]),
            ("batch_alike", self.batch_alike, [stream, mix]),
            ("balance", self.balance, [stream, mix, alike, drawn]),
            ("shuffle_strands", strands, [stream, alike, runs]),
        ):
            if value and any(others):
                raise ConfigError(
                    f"{name}={value!r} does not go with {next(filter(None, others))}: it needs "
                    f"{_NEEDED[name]}; change that, or leave one of them out"
                )
            if value and self.reader == "auto":
                put(self, reader="indexed")

    def _require_no_mix(self) -> None:
        self.require_urls()
        for name in ("round", "unit", "epoch_of", "temperature", "schedule"):
            if getattr(self, name) not in (None, 1, []):
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is a setting of a mix, and this split has "
                    "urls; leave it out, or name the shards below mix"
                )

    def _require_mix(self, mix: Mapping[str, ComponentConfig]) -> None:
        """Refuse components that cannot work, and those that give no mixture."""
        if self.urls is not None:
            raise ConfigError(
                "a split has either urls or mix, got both; leave one of them out, or make the "
                "shards of urls a component of the mix"
            )
        for name, component in mix.items():
            with errors_about(f"component {name!r}", ConfigError):
                component.check()
            for each in ("keep", "exclude"):
                if None not in (getattr(self, each), getattr(component, each)):
                    raise ConfigError(
                        f"component {name!r}: it has {each}, and so has its split, which would not "
                        f"hold for it; take {each} out of the split and write it into each "
                        "component, where parts by a hash may go to keep and lists to exclude"
                    )

    def component_splits(self) -> dict[str, "SplitConfig"]:
        """The settings of each component of the mix as those of a split; its own by '' without one.

        What a component leaves out is what this split has.
        """
        if not self.mix:
            return {"": self}
        of_mix = ("mix", "round", "epoch_of", "temperature", "dataset_size")
        alone: dict[str, Any] = dict.fromkeys(of_mix) | {"unit": 1, "schedule": []}
        mixed: dict[str, SplitConfig] = {}
        for name, component in self.mix.items():
            with errors_about(f"component {name!r}", ConfigError):
                mixed[name] = replace(self, **alone, **component.overrides())
        return mixed

    @property
    def summary(self) -> str:
        """Its shards, their order and the size of its batches, in words."""
        shards = self.shown_urls if self.mix is None else f"a mix of {', '.join(self.mix)}"
        return f"{shards}, {self.sampling}, batches of {count_of(self.batch_size or 1, 'sample')}"

    def batch_names(self, fields: Mapping[str, str]) -> list[str]:
        """The fields and joins that each of its batches has; of a mix those of all components.

        Args:
            fields: Those of the module, for splits and components that say nothing of them.
        """
        own, joins = self.fields or fields, self.join or {}
        parts = [
            [*(part.fields or own), *(joins if part.join is None else part.join)]
            for part in self._mixed
        ] or [[*own, *joins]]
        return [name for name in parts[0] if all(name in part for part in parts)]


GivenSplit: TypeAlias = SplitConfig | str | list[str]
"""A split, or only its shards."""

SplitName: TypeAlias = str
"""A split, as in ``val``, or one of several evaluation sets, as in ``val/web``."""

EvaluationSplit = Literal["val", "test", "predict"]

SET_SETTINGS: Final[dict[str, EvaluationSplit]] = {
    f"{split}_sets": split for split in get_args(EvaluationSplit)
}
"""The settings that hold several sets, and the split in whose place these are."""

_SAFE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
"""Names that options, names of files and those of metrics may have in them."""


def kind_of(name: SplitName) -> str:
    """The split that a name stands for, without the set: ``val`` of ``val/web``."""
    return name.partition("/")[0]


def set_of(name: SplitName) -> str:
    """The set of a name, ``web`` of ``val/web``; empty for a split."""
    return name.partition("/")[2]


def named_splits(settings: Mapping[str, Any]) -> dict[SplitName, Any]:
    """What settings of a data module say of each split and each set; None: there is no such split.

    >>> named_splits({"train": "a.tar", "test_sets": {"web": "b.tar"}})
    {'train': 'a.tar', 'val': None, 'test': None, 'test/web': 'b.tar', 'predict': None}
    """
    named: dict[SplitName, Any] = {}
    for split in SPLITS:
        sets: Mapping[str, Any] = settings.get(f"{split}_sets") or {}
        named |= {split: settings.get(split)} | {f"{split}/{name}": sets[name] for name in sets}
    return named


def as_settings(named: Mapping[SplitName, SplitConfig | None]) -> dict[str, Any]:
    """The settings that give these splits and sets: the inverse of `named_splits`."""
    settings: dict[str, Any] = {name: each for name, each in named.items() if not set_of(name)}
    for setting, split in SET_SETTINGS.items():
        sets = {set_of(name): each for name, each in named.items() if name.startswith(f"{split}/")}
        settings[setting] = sets or None
    return settings


def require_set_names(setting: str, sets: Iterable[str], single: object) -> None:
    """Check the names of several sets, and that the one split in whose place they are is None.

    Args:
        setting: ``val_sets``, ``test_sets`` or ``predict_sets``.
        sets: Their names.
        single: The one split.

    Raises:
        ConfigError: A name cannot be used, or both are given.
    """
    for name in sets:
        if single is not None:
            kind = SET_SETTINGS[setting]
            raise ConfigError(
                f"{kind} and {setting} are both given, and a trainer reads one of them; move "
                f"{kind} into {setting}, under a name of its own"
            )
        if not _SAFE.fullmatch(name):
            raise ConfigError(
                f"{setting} has a set named {name!r}, and names stand in options and in names of "
                "files; make it a text of letters, digits, _ and -"
            )
