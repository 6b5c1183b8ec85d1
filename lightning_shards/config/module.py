"""The settings of a data module and its loaders, and the door to YAML and omegaconf."""

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass, replace
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from omegaconf import DictConfig, OmegaConf, SCMode
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lightning_shards.config.parsing import (
    build,
    load_callable,
    load_yaml,
    plain_message,
    with_known_names,
)
from lightning_shards.config.settings import Settings, put, require_kinds
from lightning_shards.config.splits import (
    SET_SETTINGS,
    GivenSplit,
    SplitConfig,
    SplitName,
    kind_of,
    named_splits,
    require_set_names,
)
from lightning_shards.errors import (
    ConfigError,
    ShardError,
    UnsafeError,
    errors_about,
    require_choice,
    require_mapping,
)
from lightning_shards.readers.stream_stages import first_suffixes
from lightning_shards.samples.collate import RESERVED_KEYS, Collation
from lightning_shards.samples.decoders import RAW, UNSAFE_DECODERS
from lightning_shards.samples.fields import Field, make_fields, suffixes_of, with_given_classes
from lightning_shards.samples.transforms import Transform, takes_bytes
from lightning_shards.shards.joins.settings import JoinSettings, join_settings
from lightning_shards.shards.scheme_table import require_store_options

if TYPE_CHECKING:
    from lightning_shards.shards.joins.kept import Join

_NOT_LOGGED: Final = frozenset(
    ("urls", "join", "keep", "exclude", "cache_dir", "storage_options", "classes", "index")
)
"""Settings that may name places, or are long."""


@dataclass(frozen=True)
class RayConfig:
    """Where the actors of ``pool: ray`` run.

    Args:
        address: The cluster: ``auto`` joins the one of ``RAY_ADDRESS`` or of this machine, and
            starts one here for a single rank if there is none; ``local`` starts one for a single
            rank, which ends with the program; ``host:port`` joins that one.
        cpus_per_worker: CPUs that each actor asks of the cluster; those of evaluation ask for none.
        placement: ``SPREAD`` the actors of a rank over the nodes, or ``PACK`` them on one.
    """

    address: str = "auto"
    cpus_per_worker: float = 1.0
    placement: Literal["SPREAD", "PACK"] = "SPREAD"

    def __post_init__(self) -> None:
        """Refuse settings that cannot work.

        Raises:
            ConfigError: A setting is wrong; the message names it, its value and the remedy.
        """
        require_kinds(self, "ray.")
        if self.address.startswith("ray://"):
            raise ConfigError(
                f"ray.address={self.address!r} would send each byte through Ray's client proxy; "
                "start the trainer on a node of the cluster, and take 'auto' or 'host:port'"
            )


@with_known_names
@dataclass(frozen=True)
class LoaderConfig:
    """How batches are made; no setting here changes which batches they are.

    Args:
        pool: What workers are: ``processes``, ``threads`` of the trainer's own process, ``ray``
            for actors of a Ray cluster, or ``inline``, the trainer's own thread; ``num_workers=0``
            is always inline. Threads copy nothing and start at once; a training loop of much Python
            wants processes. For tiny samples ``num_workers=0`` is faster than threads.
        threads_per_worker: Threads in each worker process. Threads need transforms that draw from
            the ``rng`` they are given.
        prefetch_factor: Batches that each worker keeps ready; of small ones, messages of several.
        prefetch_bytes: Most bytes that the workers of a rank keep ready: fewer batches than
            ``prefetch_factor`` where they are large, but at least one batch or message (4 MiB) of
            each worker.
        multiprocessing_context: How worker processes start. A fork of a rank with gloo and autograd
            threads can deadlock.
        pin_memory: Whether batches of worker processes are copied into page-locked memory.
            Default: when the accelerator is CUDA. Other pools pin nothing.
        worker_timeout_s: Seconds that the trainer waits for a batch, the first one and the start
            of the workers included. Then the error says which process stood still in which stage,
            or where a thread stands. 0: there is no limit, as for ``inline``.
        cache_dir: Where counts, member tables, pieces of remote shards, joined values and what
            filters leave are kept; best on a disk of this machine. Default:
            ~/.cache/lightning_shards.
        storage_options: How the stores of remote shards are reached, by scheme: ``endpoint``,
            ``region``, ``anonymous``, ``profile`` and others. No secrets: these stay where the
            tools of each provider keep them.
        connections: Requests for remote shards that a node has under way at most, over all of its
            ranks and workers.
        cache_gib: GiB that the pieces of remote shards may take in ``cache_dir``, of all runs on a
            node together. Default: three quarters of the free disk, 50 GiB left.
        ray: Where the actors of ``pool: ray`` run.
    """

    pool: Literal["processes", "threads", "inline", "ray"] = "processes"
    threads_per_worker: int = 1
    prefetch_factor: int = 2
    prefetch_bytes: int = 2**30
    multiprocessing_context: Literal["forkserver", "spawn", "fork"] = "forkserver"
    pin_memory: bool | None = None
    worker_timeout_s: float = 300.0
    cache_dir: str | None = None
    storage_options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    connections: int = 64
    cache_gib: float | None = None
    ray: RayConfig = RayConfig()

    def __post_init__(self) -> None:
        """Refuse settings that cannot work.

        Raises:
            ConfigError: A setting is wrong; the message names it, its value and the remedy.
        """
        require_kinds(self)
        for name, pool, is_set in (
            ("threads_per_worker", "processes", self.threads_per_worker > 1),
            ("pin_memory", "processes", self.pin_memory),
            ("ray", "ray", self.ray != RayConfig()),
        ):
            if is_set and self.pool != pool:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} goes with pool={pool!r}, not {self.pool!r}; "
                    "leave it out"
                )
        if self.cache_gib == 0:
            raise ConfigError("cache_gib must be a number above 0, or left out, got 0")
        if self.cache_dir and not self.cache_dir.startswith("~"):  # the run may change its folder
            put(self, cache_dir=str(Path(self.cache_dir).absolute()))
        for scheme, options in self.storage_options.items():
            require_mapping(f"storage_options of {scheme}", options, "{endpoint: ...}")
            require_store_options(scheme, options)

    def needs_server(self, num_workers: int) -> bool:
        """Whether so many workers are processes that come from a fork server."""
        is_forked = self.multiprocessing_context == "forkserver"
        return num_workers > 0 and self.pool == "processes" and is_forked


@with_known_names
@dataclass(frozen=True)
class DataConfig(Settings):
    """The settings of all splits, checked: the arguments of `ShardDataModule`, which explains them.

    What Lightning does with a split is all that it lacks, so that tools need no Lightning.
    """

    train: GivenSplit | None = None
    val: GivenSplit | None = None
    test: GivenSplit | None = None
    predict: GivenSplit | None = None
    _: KW_ONLY
    fields: dict[str, str] = field()
    val_sets: dict[str, GivenSplit] | None = None
    test_sets: dict[str, GivenSplit] | None = None
    predict_sets: dict[str, GivenSplit] | None = None
    collate_fn: Any = None
    batch_keys: list[str] | None = None
    device_transforms: dict[str, Any] | None = None
    batch_size: int = 32
    num_workers: int = 2
    seed: int = 0
    batch_format: Literal["dict", "tuple"] = "dict"
    loader: LoaderConfig = LoaderConfig()
    allow_unsafe: list[str] | None = None

    def __post_init__(self) -> None:
        """Load splits and callables by what names them, and refuse settings that cannot work.

        Raises:
            ConfigError: A setting is wrong; the message names it, its value and the remedy.
        """
        self.check()
        for setting, split in SET_SETTINGS.items():
            require_set_names(setting, getattr(self, setting) or (), getattr(self, split))
        for name in ("fields", "defaults", "decode", "classes", "transforms", "device_transforms"):
            put(self, **{name: dict[str, Any](getattr(self, name) or {})})
        if self.loader.pool == "ray" and self.num_workers == 0:
            raise ConfigError("pool='ray' needs num_workers of at least 1, got 0; or leave it out")
        for name in self.allow_unsafe or ():
            require_choice("allow_unsafe", name, ("pipe", *sorted(UNSAFE_DECODERS), "ray"))
        for name in [name for name, split in self.splits.items() if split is not None]:
            self._check_fields(name)
            self.collation_of(name)
        self._require_device_names()

    @property
    def splits(self) -> dict[SplitName, SplitConfig | None]:
        """The settings of each split and each set as given; None: there is no such split."""
        return named_splits(vars(self))

    def split(self, name: SplitName) -> SplitConfig:
        """The settings of a split or a set; each missing one is that of all, or a default.

        Raises:
            ConfigError: There is no such split.
        """
        config = self.splits.get(name)
        if config is None:
            given = [split for split, config in self.splits.items() if config is not None]
            raise ConfigError(
                f"there is no {name!r} split; this module was given {given}: name one of these, or "
                f"add {kind_of(str(name))}=SplitConfig(urls=...)"
            )
        is_train = name == "train"
        return replace(
            config.over(self),
            sampling=config.sampling or ("resampled" if is_train else "sequential"),
            remainder=config.remainder or ("drop" if is_train else "balanced"),
        )

    def fields_from(self, config: SplitConfig) -> tuple[Field, ...]:
        """The fields of a split or of a component with these settings, which are complete.

        Raises:
            ConfigError: These fields cannot be taken from any shard.
        """
        fields, transforms = config.fields or {}, config.transforms or {}
        decode, joins = config.decode or {}, join_settings(config.join or {})
        unknown = sorted(transforms.keys() - fields.keys() - {join.name for join in joins})
        if unknown and not (config.stages or config.sample_transforms):  # these may add fields
            raise ConfigError(
                f"transforms names {unknown}, and the fields are {sorted(fields)}; name a field, "
                "or add one to fields"
            )
        unsafe = frozenset(self.allow_unsafe or ())
        defaults = config.defaults or {}
        try:
            made = _fields_with_joins(fields, joins, decode, unsafe, transforms, defaults)
        except UnsafeError:
            raise
        except ConfigError as error:
            known = first_suffixes(config.urls or [])
            for field in (Field(name, suffixes_of(text)) for name, text in fields.items()):
                if known and all(field.suffixes) and not field.suffixes_in(known):
                    raise ConfigError(str(field.lacking("the first shard", known))) from error
            raise
        if config.balance not in {None, *(field.name for field in made)}:
            raise ConfigError(
                f"balance={config.balance!r} is none of the fields, which are "
                f"{[field.name for field in made]}; name one of them, or a join"
            )
        alike = config.batch_alike
        with_members = [field.name for field in made if not field.is_joined]
        if alike is not None and alike.field not in with_members:
            raise ConfigError(
                f"batch_alike compares the members of the field {alike.field!r}, and the fields "
                f"that have one are {with_members}; name one of these"
            )
        return with_given_classes(made, config.classes or {})

    def _require_device_names(self) -> None:
        """Refuse device transforms of names that can be in no batch of any split."""
        configs = [self.split(name) for name, config in self.splits.items() if config is not None]
        parts = [p for each in configs for p in each.component_splits().values()]
        if any(p.collate_fn is not None or p.stages or p.sample_transforms for p in parts):
            return  # code of the user's may add entries
        named = {name for part in parts for name in (*(part.fields or {}), *(part.join or {}))}
        unknown = sorted((self.device_transforms or {}).keys() - {*named, *RESERVED_KEYS})
        if unknown and parts:
            raise ConfigError(
                f"device_transforms names {unknown}, and batches have {sorted(named)}; name an "
                "entry of theirs"
            )

    def _check_fields(self, split: SplitName) -> None:
        """Refuse fields that cannot be taken from any shard, and a mix that is not trained on."""
        config = self.split(split)
        if not config.mix:
            self.fields_from(config)
            return
        if split != "train":
            raise ConfigError(
                f"{split} takes no mix, which repeats samples and leaves some out; for each sample "
                "once give the urls of all components, as one list"
            )
        named: dict[str, set[str]] = {}
        for name, component in config.component_splits().items():
            with errors_about(f"component {name!r}", ConfigError):
                made = self.fields_from(component)
            if not (component.sample_transforms or component.stages):  # these may rename fields
                named[name] = {field.name for field in made}
        if config.unit % (config.batch_size or 1) == 0 and self.batch_format == "dict":
            return  # a batch is of one component
        for (first, names), (other, others) in pairwise(named.items()):
            if differing := sorted(names ^ others):
                has, lacks = (first, other) if differing[0] in names else (other, first)
                raise ConfigError(
                    f"component {has!r} has the field {differing[0]!r}, and component {lacks!r} "
                    "has not; give all components the same fields, or keep them apart: "
                    "batch_format='dict' and a unit of whole batches"
                )

    def collation_of(self, split: SplitName) -> Collation:
        """The `collate_fn` of a split, and the reserved entries of its batches.

        Raises:
            ConfigError: They do not go with the other settings.
        """
        config, are_tuples = self.split(split), self.batch_format == "tuple"
        if config.collate_fn is not None and are_tuples:
            raise ConfigError(
                f"collate_fn of {split!r} makes whole batches, and batch_format='tuple' asks for "
                "tuples of fields; leave batch_format out, and let the collate_fn return a tuple"
            )
        if config.on_bad_sample == "substitute" and are_tuples:
            raise ConfigError(
                f"on_bad_sample='substitute' of {split!r} says by `__weight__` which samples only "
                "fill a place, and a tuple has the fields alone; take batch_format='dict'"
            )
        keys = config.batch_keys
        if keys is None:
            return Collation(config.collate_fn, () if are_tuples else RESERVED_KEYS)
        if are_tuples:
            raise ConfigError(
                f"batch_keys={keys} of {split!r} has no effect with batch_format='tuple', whose "
                "batches have the fields alone; leave it out"
            )
        for name in keys:
            require_choice("batch_keys", name, RESERVED_KEYS)
        for name in ("remainder", "on_bad_sample"):
            value = getattr(config, name)
            if value in {"pad", "substitute"} and "__weight__" not in keys:
                raise ConfigError(
                    f"{name}={value!r} of {split!r} says by `__weight__` which samples only fill a "
                    f"place, and batch_keys={keys} leaves it out; name '__weight__' in batch_keys, "
                    "and take it out of the batch before the model"
                )
        return Collation(config.collate_fn, tuple(keys))


def _fields_with_joins(
    fields: Mapping[str, str],
    joins: Sequence[JoinSettings],
    decode: Mapping[str, Any],
    *more: Any,
) -> tuple[Field, ...]:
    """The fields of members, and after them those of joins, all checked.

    The arguments are those of `make_fields`, after its first one the settings of the joins.

    Raises:
        ConfigError: As of `make_fields`; or a join has the name of a field.
    """
    for join in joins:
        if join.name in fields:
            raise ConfigError(
                f"join {join.name!r} has the name of a field that comes from "
                f"{fields[join.name]!r}; give one of them another name"
            )
    # until their columns have been looked at
    undecoded = {join.name: RAW for join in joins if not join.is_tar}
    texts = {join.name: join.member_text for join in joins}
    named = {**fields, **texts} if fields else fields
    made = make_fields(named, {**undecoded, **decode}, *more)
    return tuple(replace(field, is_joined=field.name in texts) for field in made)


def with_kinds(
    fields: Iterable[Field],
    joins: "Iterable[Join]",
    decode: Mapping[str, Any],
    transforms: Mapping[str, Transform],
) -> tuple[Field, ...]:
    """The fields, where joined ones without a decoder have those of what their columns hold.

    Raises:
        ConfigError: The name of another decoder is given for a column that holds no texts or bytes.
    """
    kinds = {join.settings.name: join.kind for join in joins if join.kind}
    for name, kind in kinds.items():
        decoder = decode.get(name, kind)
        if isinstance(decoder, str) and decoder != kind and kind not in ("text", RAW):
            raise ConfigError(
                f"join {name!r}: its column holds numbers or nested values ({kind}), and decode="
                f"{decoder!r} takes texts or bytes; leave {name!r} out of decode"
            )
    chosen = {*decode, *(name for name in transforms if takes_bytes(transforms[name]))}
    return tuple(
        replace(field, decoder=kinds[field.name]) if field.name in kinds.keys() - chosen else field
        for field in fields
    )


_T = TypeVar("_T")

_Config = DictConfig | Mapping[str, Any] | str | PathLike[str]


def data_from_config(config: _Config) -> DataConfig | None:
    """The settings in a configuration, read as for a data module, but without Lightning.

    None: it names a data module of the user's, and only that class knows what it reads.

    Raises:
        ConfigError: It cannot be read, or holds settings that `ShardDataModule` does not take.
        FileNotFoundError: There is no such file.
    """
    class_path, settings = _class_and_settings(config)
    if class_path.rpartition(".")[2] not in {"", "ShardDataModule"}:
        return None
    return _made(DataConfig, settings)


def module_from_config(module_class: type[_T], config: _Config) -> _T:
    """The data module that a configuration describes; see `ShardDataModule.from_config`.

    Raises:
        ConfigError: It cannot be read, or holds settings that the module does not take.
        FileNotFoundError: There is no such file.
    """
    class_path, settings = _class_and_settings(config)
    make: Any = load_callable("data.class_path", class_path) if class_path else module_class
    if not (isinstance(make, type) and issubclass(make, module_class)):
        raise ConfigError(
            f"data.class_path must be {module_class.__name__} or a class that is made from it, "
            f"got {class_path!r}"
        )
    return _made(make, settings)


def _made(make: type[_T], settings: Mapping[str, Any]) -> _T:
    try:
        return build(make, settings, "data")
    except ConfigError as error:
        raise type(error)(placed_message(error, settings)) from error


def plain_settings(settings: object) -> Any:
    """Settings as plain values in dicts and lists, as loggers take them.

    Those that are None or may name places or secrets are left out, and so are names of classes,
    which may be many; a callable is its name, or its name with its settings.
    """
    if isinstance(settings, Mapping):
        given = cast("Mapping[str, object]", settings).items()
        return {name: plain_settings(value) for name, value in given if value is not None}
    if isinstance(settings, list | tuple):
        return list(map(plain_settings, cast("list[object]", settings)))
    if is_dataclass(settings) and not isinstance(settings, type):
        names = [each.name for each in fields(settings) if each.name not in _NOT_LOGGED]
        plain = plain_settings({name: getattr(settings, name) for name in names})
        return {type(settings).__qualname__: plain} if callable(settings) else plain
    is_plain = settings is None or isinstance(settings, str | int | float)
    return settings if is_plain else getattr(settings, "__qualname__", type(settings).__qualname__)


def read_setting(path: str | PathLike[str], key: str) -> object:
    """One setting of a YAML of LightningCLI, as in `trainer.devices`; None if it is not there.

    Raises:
        ConfigError: The file is not YAML, or an interpolation cannot be resolved.
        OSError: There is no such file, or it holds a bare value.
    """
    with _errors_name(repr(fspath(path))):
        return OmegaConf.select(OmegaConf.load(fspath(path)), key)


def placed_message(error: ShardError, settings: Mapping[str, Any]) -> str:
    """The message with the section that it is about, and the split if it is about one.

    Args:
        error: An error of a data module or of a split about its settings.
        settings: The settings of the data module, in plain values.
    """
    if re.match(r"(data|trainer|output)(\.[^\s:]+)?: ", str(error)):
        return str(error)
    for name, split in named_splits(settings).items():
        if isinstance(split, Mapping):
            try:
                SplitConfig(**cast("Mapping[str, Any]", split))
            except ShardError:
                return f"data.{name}: {error}"
    return f"data: {error}"


def _class_and_settings(config: _Config) -> tuple[str, dict[str, Any]]:
    """The class that the section `data` of a config names, or '', and the settings in it.

    A config without such a section is one.
    """
    where = repr(fspath(config)) if isinstance(config, str | PathLike) else "the config"
    with _errors_name(where):
        node: Any = config
        if isinstance(config, str | PathLike):
            node = load_yaml(Path(config).read_text(encoding="utf-8"))
        elif not OmegaConf.is_config(config):  # one made by Python code may hold callables
            node = OmegaConf.create(dict(config), flags={"allow_objects": True})
        if "data" in node:
            node = node.data
        if not isinstance(node, DictConfig):
            raise ConfigError(f"{where} must hold the settings of a data module, got {node!r}")
        section: Any = OmegaConf.to_container(
            node, resolve=True, throw_on_missing=True, structured_config_mode=SCMode.DICT
        )
    if "class_path" not in section:
        return "", section
    class_path = section.pop("class_path")
    settings: dict[str, Any] = section.pop("init_args", None) or {}
    if section:
        raise ConfigError(
            f"data takes class_path and init_args, or settings, not {sorted(section)}"
        )
    require_mapping(f"init_args in {where}", settings)
    return class_path, settings


@contextmanager
def _errors_name(where: str) -> Generator[None]:
    """Turn errors of YAML and omegaconf into ours, in one line that begins with the file's name."""
    try:
        yield
    except ShardError:  # a ConfigError is a ValueError, too
        raise
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(f"{where}: {plain_message(error)}") from error
