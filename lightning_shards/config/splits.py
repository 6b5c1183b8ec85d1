"""The settings of one split, and of several evaluation sets in the place of one.

The layers below the configuration take plain arguments. Each set has a name by which everything
knows it: `val/web` is the set `web` of `val_sets`. So what is kept for each split is kept for each
set too, and no code needs to know which of the two it has.
"""

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, get_args

from lightning_shards.config.mixtures import (
    MERGED,
    ComponentConfig,
    WeightChangeConfig,
    check_weights,
    errors_of_component,
    folder_of_index,
    made_components,
    made_config,
    made_schedule,
    require_urls,
    safe_repr,
)
from lightning_shards.config.parsing import (
    build,
    load_callable,
    load_callable_list,
    load_callables,
    load_decoders,
    require_no_single_keys,
    with_torch_words,
)
from lightning_shards.errors import (
    ConfigError,
    ShardError,
    name_set,
    path_as_text,
    require_at_least,
    require_choice,
    require_fields,
    require_list,
    require_mappings,
    require_text,
    urls_as_texts,
)
from lightning_shards.shards.filters.settings import names_callable, sample_filter
from lightning_shards.shards.joins.settings import join_settings

Split = Literal["train", "val", "test", "predict"]
SPLITS: Final[tuple[Split, ...]] = get_args(Split)

_MOST_WEIGHT: Final = 1_000_000  # of a class

_Name = TypeVar("_Name", bound=str)


@dataclass(frozen=True)
class BatchAlikeConfig:
    """Samples of like size in one batch, so that it needs little padding.

    Args:
        field: The field whose members are compared by their sizes in bytes.
        group: Samples of like size that stand together: the global batch, as a rule.
    """

    field: str
    group: int


@with_torch_words
@dataclass(frozen=True)
class SplitConfig:
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
        decode: Batch key, or a suffix with its dot, to decoder; overrides the module's for this
            split.
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

    urls: str | list[str] | None = None
    sampling: Literal["resampled", "shuffled", "sequential"] | None = None
    reader: Literal["auto", "stream", "indexed"] = "auto"
    dataset_size: int | None = None
    remainder: Literal["drop", "pad", "balanced"] | None = None
    batch_size: int | None = None
    fields: dict[str, str] | None = None
    defaults: dict[str, Any] | None = None
    decode: dict[str, Any] | None = None
    classes: dict[str, list[str] | dict[str, int]] | None = None
    transforms: dict[str, Any] | None = None
    sample_transforms: list[Any] | None = None
    collate_fn: Any = None
    batch_keys: list[str] | None = None
    join: dict[str, Any] | None = None
    stages: list[Any] = field(default_factory=list[Any])
    shuffle_buffer: int | None = None
    shuffle_run: int = 64
    shuffle_block: int = 16_384
    shuffle_strands: int = 1
    shuffle_width: int = 2_048
    batch_alike: BatchAlikeConfig | None = None
    on_bad_sample: Literal["raise", "substitute"] = "raise"
    max_bad: int = 0
    balance: str | None = None
    balance_weights: dict[str, Any] | None = None
    exclude: str | list[str] | dict[str, Any] | None = None
    keep: Any = None
    mix: dict[str, ComponentConfig] | None = None
    round: int | None = None
    unit: int = 1
    epoch_of: str | None = None
    temperature: float | None = None
    schedule: list[WeightChangeConfig] = field(default_factory=list[WeightChangeConfig])
    index: str | None = None

    def __post_init__(self) -> None:
        """Refuse settings that are wrong whatever the shards hold.

        Raises:
            ConfigError: A setting is wrong; the message names it, its value and the remedy.
        """
        if self.urls is not None:
            object.__setattr__(self, "urls", urls_as_texts(self.urls))
        self._require_containers()
        self._require_one_origin()
        require_choice("sampling", self.sampling, (None, "resampled", "shuffled", "sequential"))
        require_choice("reader", self.reader, ("auto", "stream", "indexed"))
        require_choice("remainder", self.remainder, (None, "drop", "pad", "balanced"))
        require_choice("on_bad_sample", self.on_bad_sample, ("raise", "substitute"))
        for name, least in (("dataset_size", 1), ("batch_size", 1), ("shuffle_buffer", 0)):
            if getattr(self, name) is not None:
                require_at_least(name, getattr(self, name), least)
        require_at_least("shuffle_run", self.shuffle_run, 0)
        for name in ("shuffle_block", "shuffle_strands", "shuffle_width"):
            require_at_least(name, getattr(self, name), 1)
        require_at_least("max_bad", self.max_bad, 0)
        if self.on_bad_sample == "substitute" and not self.max_bad:
            raise ConfigError(
                "on_bad_sample='substitute' needs a budget: set max_bad to the bad samples that an "
                "epoch may have over all ranks, at least 1"
            )
        if self.max_bad and self.on_bad_sample == "raise":
            raise ConfigError(
                f"max_bad={self.max_bad} has no effect with on_bad_sample='raise'; leave it at 0, "
                "or set on_bad_sample='substitute'"
            )
        object.__setattr__(self, "index", folder_of_index(self.index))
        self._require_joins()
        if self.batch_alike is not None:
            self._require_alike()
        self._require_balance()
        self._require_strands()
        self._load_callables()

    @property
    def has_joins(self) -> bool:
        """Whether it has joins, or a component of its mix."""
        return any(self._joins)

    @property
    def _joins(self) -> list[dict[str, Any]]:
        """Its joins, or those of each component of its mix."""
        parts = (self.mix or {}).values()
        return [part.joined(self.join) for part in parts] or [self.join or {}]

    def _require_joins(self) -> None:
        join_settings(self.join or {})
        has_stages = self.stages or any(part.stages for part in (self.mix or {}).values())
        if self.has_joins and (self.reader == "stream" or has_stages):
            name = next(name for joins in self._joins for name in joins)
            reason = "reader='stream' was asked for" if not has_stages else "stages need a stream"
            raise ConfigError(
                f"join {name!r} needs the indexed reader, which knows samples by their "
                f"numbers, and {reason}; leave that out, or leave `join` out"
            )

    def _require_alike(self) -> None:
        """Make the settings of `batch_alike`, and refuse what its order does not go with."""
        made = made_config(BatchAlikeConfig, self.batch_alike, "batch_alike")
        object.__setattr__(self, "batch_alike", made)
        require_at_least("batch_alike.group", made.group, 2)
        stream = "stages" if self.stages else "reader='stream'" if self.reader == "stream" else ""
        other = stream if self.mix is None else "a mix"
        if other:
            raise ConfigError(
                f"batch_alike by {made.field!r} moves samples, which takes the indexed reader and "
                f"one data set, and does not go with {other}; leave one of both out"
            )

    def _require_balance(self) -> None:
        """Refuse weights of classes that are none, and what a balance does not go with."""
        require_mappings(self, ("balance_weights",))
        for name, weight in (self.balance_weights or {}).items():
            is_weight = isinstance(weight, int | float) and 0 <= weight <= _MOST_WEIGHT
            if self.balance is None or not is_weight:
                raise ConfigError(
                    f"balance_weights has {name!r}: {weight!r}; write numbers from 0 (never drawn) "
                    f"to {_MOST_WEIGHT:,}, and name the field of the classes in balance"
                )
        refused = [name for name in ("mix", "batch_alike", "stages") if getattr(self, name)]
        refused += ["reader='stream'"] * (self.reader == "stream")
        refused += [f"sampling={self.sampling!r}"] * (self.sampling not in (None, "resampled"))
        if self.balance is not None and refused:
            raise ConfigError(
                f"balance={self.balance!r} draws by sampling='resampled' and the indexed reader, "
                f"and does not go with {refused[0]}; leave one of them out"
            )

    def _require_strands(self) -> None:
        """Refuse what strands do not go with; of a mix the settings of each component are asked."""
        if self.mix is not None or self.shuffle_strands == 1:
            return
        if self.reader == "auto":
            object.__setattr__(self, "reader", "indexed")
        needs = self.sampling == "shuffled" and self.shuffle_run and self.reader == "indexed"
        if self.batch_alike or not needs:
            raise ConfigError(
                f"shuffle_strands={self.shuffle_strands} needs sampling='shuffled', runs, and the "
                f"indexed reader, got sampling={self.sampling!r}, shuffle_run={self.shuffle_run} "
                f"and reader={self.reader!r}, and does not go with batch_alike; change that, or "
                "leave shuffle_strands out"
            )

    def _require_containers(self) -> None:
        if self.fields is not None:
            require_fields(self.fields)
        require_mappings(self, ("defaults", "decode", "classes", "transforms", "join"))
        if self.batch_keys is not None:
            require_list("batch_keys", self.batch_keys)

    def __repr__(self) -> str:
        """Like that of any dataclass, but without passwords, signatures and commands in URLs."""
        return safe_repr(self)

    def component_splits(self) -> dict[str, "SplitConfig"]:
        """The settings of each component of the mix as those of a split; empty: there is no mix.

        What a component leaves out is what this split has.
        """
        alone: dict[str, Any] = {
            **dict.fromkeys(("mix", "round", "epoch_of", "temperature", "dataset_size")),
            "unit": 1,
            "schedule": [],
        }
        mixed: dict[str, SplitConfig] = {}
        for name, component in (self.mix or {}).items():
            joined = component.joined(self.join)
            with errors_of_component(name):
                made = replace(self, **alone, **component.overrides(), join=joined or None)
            is_whole = bool(made.sample_transforms or made.stages)  # which may add fields
            merge = partial(component.merged, is_whole=is_whole)
            merged = {
                setting: merge(setting, getattr(self, setting) or {}, joined) for setting in MERGED
            }
            mixed[name] = replace(made, **merged)
        return mixed

    def batch_fields(self, of_module: Mapping[str, str]) -> list[str]:
        """The fields that each of its batches has; of a mix those that all components have.

        Args:
            of_module: The fields of splits and components that say nothing of them.
        """
        own = self.fields or of_module
        return _in_all([part.fields or own for part in (self.mix or {}).values()] or [own])

    @property
    def batch_joins(self) -> list[str]:
        """The joined fields that each of its batches has; of a mix those of all components."""
        return _in_all(self._joins)

    def _require_one_origin(self) -> None:
        """Refuse a split that reads nothing or two things, and check its mix."""
        if self.urls is not None and self.mix is not None:
            raise ConfigError(
                "a split has either urls or mix, got both; leave one of them out, or make the "
                "shards of urls a component of the mix"
            )
        if self.mix is None:
            require_urls(self.urls or [])
            for name in ("round", "unit", "epoch_of", "temperature", "schedule"):
                if getattr(self, name) not in (None, 1, []):
                    raise ConfigError(
                        f"{name}={getattr(self, name)!r} is a setting of a mix, and this split has "
                        "urls; leave it out, or name the shards below mix"
                    )
            return
        object.__setattr__(self, "mix", made_components(self.mix))
        object.__setattr__(self, "schedule", made_schedule(self.schedule))
        for name, component in self.mix.items():
            with errors_of_component(name):
                component.require_one_filter({"keep": self.keep, "exclude": self.exclude})
        if self.round is not None:
            require_at_least("round", self.round, 1)
        require_at_least("unit", self.unit, 1)
        if self.epoch_of is not None:
            require_text("epoch_of", self.epoch_of)
        length = (self.dataset_size, self.epoch_of)
        check_weights(self.mix, self.schedule, self.temperature, length)

    def _load_callables(self) -> None:
        """Replace names of callables by the callables, once and before any use."""
        if self.transforms is not None:
            transforms = load_callables("the transform of", self.transforms)
            object.__setattr__(self, "transforms", transforms)
        if self.decode is not None:
            object.__setattr__(self, "decode", load_decoders(self.decode))
        if self.sample_transforms is not None:
            loaded = load_callable_list("sample_transforms", self.sample_transforms)
            object.__setattr__(self, "sample_transforms", loaded)
        if self.collate_fn is not None:
            object.__setattr__(self, "collate_fn", load_callable("collate_fn", self.collate_fn))
        require_no_single_keys("keep", self.keep, "{hash_of: key, of: 20, parts: [0]}")
        if names_callable(self.keep):
            object.__setattr__(self, "keep", load_callable("keep", self.keep))
        exclude = path_as_text(self.exclude)
        if isinstance(exclude, list | tuple):
            exclude = list(map(path_as_text, cast("Sequence[object]", exclude)))
        object.__setattr__(self, "exclude", exclude)
        sample_filter(self.keep, self.exclude)
        object.__setattr__(self, "stages", load_callable_list("stages", self.stages))


def split_configs(given: Mapping[_Name, object]) -> dict[_Name, SplitConfig | None]:
    """The configurations of splits, which may be given by their urls alone or by dicts.

    Args:
        given: A SplitConfig, what `urls` may be, or a dict of settings; None: there is no split.

    Raises:
        ConfigError: One is none of these, or a setting is wrong.
    """
    return {name: _split_config(name, split) for name, split in given.items()}


def _split_config(name: str, split: object) -> SplitConfig | None:
    split = with_urls(split)
    if isinstance(split, Mapping):
        return build(SplitConfig, cast("Mapping[str, Any]", split), name)
    if split is not None and not isinstance(split, SplitConfig):
        raise ConfigError(
            f"{name} must be a SplitConfig, a dict of its settings, or shards alone as a path, a "
            f"pattern or a list of them; got {type(split).__name__}"
        )
    return split


def with_urls(split: object) -> object:
    """A split that is given by its urls alone as ``{"urls": ...}``, and any other as it is."""
    split = path_as_text(split)
    if isinstance(split, str):
        return {"urls": split}
    if isinstance(split, Sequence):
        return {"urls": list(map(path_as_text, cast("Sequence[object]", split)))}
    return split


def _in_all(parts: Sequence[Mapping[str, object]]) -> list[str]:
    """The names that all of these have, in the order of the first one."""
    return [name for name in parts[0] if all(name in part for part in parts)]


SplitName: TypeAlias = str
"""A split, as in ``val``, or one of several evaluation sets, as in ``val/web``."""

EvaluationSplit = Literal["val", "test", "predict"]

SET_SETTINGS: Final[dict[str, EvaluationSplit]] = {
    "val_sets": "val",
    "test_sets": "test",
    "predict_sets": "predict",
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


def named_splits(
    splits: Mapping[Split, SplitConfig | None],
    sets: Mapping[str, Mapping[str, SplitConfig] | None],
) -> dict[SplitName, SplitConfig | None]:
    """The settings of all splits and sets by their names, each set behind the split of its kind.

    >>> web = SplitConfig("a.tar")
    >>> list(named_splits({"train": None, "val": None}, {"val_sets": {"web": web}}))
    ['train', 'val', 'val/web']
    """
    named: dict[SplitName, SplitConfig | None] = {}
    for split, config in splits.items():
        named[split] = config
        for setting, kind in SET_SETTINGS.items():
            if kind == split:
                named |= {
                    f"{split}/{name}": each for name, each in (sets.get(setting) or {}).items()
                }
    return named


def as_settings(named: Mapping[SplitName, SplitConfig | None]) -> dict[str, Any]:
    """The settings that give these splits and sets: what `named_splits` was made of."""
    settings: dict[str, Any] = {name: each for name, each in named.items() if not set_of(name)}
    for setting, split in SET_SETTINGS.items():
        sets = {set_of(name): each for name, each in named.items() if name.startswith(f"{split}/")}
        settings[setting] = sets or None
    return settings


def missing_split(name: object, named: Mapping[SplitName, object]) -> str:
    """What to say of a split that there is not; the user may have given anything as its name."""
    given = [split for split, config in named.items() if config]
    sets = [split for split in given if kind_of(split) == name]
    if sets:
        return f"{name!r} stands for several evaluation sets; name one of {sets}"
    if not isinstance(name, str) or kind_of(name) not in SPLITS:
        meant = get_close_matches(str(name), SPLITS, 1)
        question = f"; did you mean {meant[0]!r}?" if meant else ""
        return f"there is no {name!r} split; a split is one of {', '.join(SPLITS)}{question}"
    remedy = f"{name}=SplitConfig(urls=...)"
    if set_of(name):
        remedy = f"it to {kind_of(name)}_sets"
    return f"there is no {name!r} split; this module was given {given}: add {remedy}"


def set_configs(setting: str, given: object, single: object) -> dict[str, SplitConfig] | None:
    """The configurations of the sets of one kind; None if there are none.

    Args:
        setting: ``val_sets``, ``test_sets`` or ``predict_sets``.
        given: A dict from names to what a split may be given by.
        single: The one split in whose place they are, which must be None.

    Raises:
        ConfigError: They are no such dict, a name cannot be used, or a set cannot work.
    """
    if not given:
        return None
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{setting} must be a dict of names to SplitConfigs, as in {{'web': ...}}, got a "
            f"{type(given).__name__}"
        )
    if single is not None:
        split = SET_SETTINGS[setting]
        raise ConfigError(
            f"{split} and {setting} are both given, and a trainer reads one of them; move {split} "
            f"into {setting}, under a name of its own"
        )
    sets = cast("Mapping[object, object]", given)
    _require_names(setting, sets)
    splits = split_configs({f"{setting}.{name}": each for name, each in sets.items()})
    return {str(name): _present(key, splits[key]) for name in sets if (key := f"{setting}.{name}")}


def _present(key: str, config: SplitConfig | None) -> SplitConfig:
    if config is None:
        raise ConfigError(f"{key} is None, which is no evaluation set; leave its name out")
    return config


def _require_names(setting: str, names: Iterable[object]) -> None:
    known: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not _SAFE.fullmatch(name):
            raise ConfigError(
                f"{setting} has a set named {name!r}, and names stand in options and in names of "
                "files; make it a text of letters, digits, _ and -, in quotes where YAML reads it "
                "as a number or as a bool"
            )
        if name.lower() in known:
            raise ConfigError(
                f"{setting} has {known[name.lower()]!r} and {name!r}, which are one name for some "
                "file systems; give one of them another name"
            )
        known[name.lower()] = name


def with_set_urls(sets: object) -> object:
    """Sets of which some are given by their urls alone, with ``{"urls": ...}`` for these."""
    if not isinstance(sets, Mapping):
        return sets
    named = cast("Mapping[str, object]", sets)
    return {name: with_urls(each) for name, each in named.items()}


@contextmanager
def errors_of(name: SplitName) -> Generator[None]:
    """A context whose errors say which of several sets they are about."""
    try:
        yield
    except ShardError as error:
        name_set(error, name)
        raise
