"""The settings of the joins of a split, checked before anything is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from lightning_shards.errors import ConfigError, urls_as_texts
from lightning_shards.shards.urls import is_local, redact, redact_pattern, scheme_of

JOIN_PREFIX: Final = "join "
"""Begins the names of joins among the values that a checkpoint is compared by."""

KEY: Final = "__key__"
"""The column that is matched with the keys of samples, where none is named."""

ROW: Final = "row"
"""Stands for the suffix of a member where values come from the rows of a Parquet table."""

Missing: TypeAlias = Literal["none", "raise"]

_TARS: Final = (".tar",)
_PARQUET: Final = (".parquet", ".pq")


def component_of_join(name: str) -> str | None:
    """The component of a mixture of which a name that begins with `JOIN_PREFIX` is; None: of none.

    >>> component_of_join("join web.text"), component_of_join("seed")
    ('web', None)
    """
    component, is_of_one, _ = name.removeprefix(JOIN_PREFIX).partition(".")
    return component if is_of_one and name.startswith(JOIN_PREFIX) else None


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """One join: a table, and which of its columns becomes a field.

    Attributes:
        name: The key of the field in samples and batches.
        table: Patterns of the Parquet files or the tars that are the table, which may be remote.
        key: The column of a Parquet table that is matched with the samples' `__key__`.
        column: The column whose values are taken; of tars the suffix of their members. None: the
            column named like the join, or the only one beside the key.
        missing: What becomes of samples without a value: ``none`` gives them None or the default
            of the field, ``raise`` makes them an error.
    """

    name: str
    table: tuple[str, ...] = field(repr=False)  # may hold what is secret
    key: str
    column: str | None
    missing: Missing

    @property
    def is_tar(self) -> bool:
        """Whether the table is a second set of tars with the same keys."""
        return _ends_with(self.table[0], _TARS)

    @property
    def member_text(self) -> str:
        """What stands for the join in `fields`: a suffix, with a `?` where values may be missing.

        >>> JoinSettings("caption", ("a.tar",), KEY, "txt", "none").member_text
        'txt?'
        """
        suffix = self.column if self.is_tar and self.column else ROW
        return suffix if self.missing == "raise" else f"{suffix}?"


def join_settings(join: Mapping[str, object]) -> tuple[JoinSettings, ...]:
    """The settings of joins, checked.

    Args:
        join: Name of the join to its table, or to a dict of its settings.

    Raises:
        ConfigError: A setting is wrong; the message names the join, the value and the remedy.
    """
    return tuple(_settings(name, given) for name, given in join.items())


def _settings(name: str, given: Any) -> JoinSettings:
    values = {"table": given}
    if isinstance(given, Mapping):
        values = dict(cast("Mapping[str, Any]", given))
    table, missing = values.pop("table", None), values.get("missing", "none")
    names = [values.get("key"), values.get("column")]
    is_right = (
        (name and table and values.keys() <= {"key", "column", "missing"})
        and missing in get_args(Missing)
        and all(each is None or (isinstance(each, str) and each) for each in names)
    )
    if not is_right:
        raise ConfigError(
            f"join {name!r} has {f'the settings {values}' if table else 'no table'}; it takes a "
            "table, key and column, which are names of columns, and missing, 'none' or 'raise', as "
            f"in {{caption: {{table: table.parquet, key: {KEY}}}}}"
        )
    key, column = names
    settings = JoinSettings(name, _tables(name, table), key or KEY, column, missing)
    if settings.is_tar and (key is not None or column is None):
        raise ConfigError(
            f"join {name!r} reads tars, which have the keys of their samples, and takes the suffix "
            "of their members, without a dot before it, as in column: txt, and no key; got "
            f"column={column!r} and key={key!r}"
        )
    return settings


def _tables(name: str, given: object) -> tuple[str, ...]:
    """The patterns of a table, all of one kind."""
    texts = urls_as_texts(given, f"table of join {name!r}")
    parts = ("::".join([texts] if isinstance(texts, str) else texts)).split("::")
    for endings in (_TARS, _PARQUET):
        if all(_ends_with(part, endings) for part in parts):
            return tuple(parts)
    raise ConfigError(
        f"table of join {name!r} is {list(map(redact_pattern, parts))}; name either Parquet files, "
        "which end in .parquet, or tars, which end in .tar"
    )


def _ends_with(pattern: str, endings: tuple[str, ...]) -> bool:
    """Whether the name of the files ends so, without what a URL asks for behind it."""
    name = pattern if is_local(pattern) else redact(pattern)
    return scheme_of(pattern) != "pipe" and name.rstrip("}").endswith(endings)
