"""Optional fields, as in ``{"mask": "mask.png?"}``: samples may have no member for them."""

import copy
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, MissingFieldError, count_of
from lightning_shards.samples.arrays import JSON_DECODERS, NUMBER_DECODERS
from lightning_shards.samples.decoders import CLASS, LABELS, PIXEL_DECODERS, DecoderChoice
from lightning_shards.samples.generators import are_same
from lightning_shards.samples.tensors import as_tensor
from lightning_shards.shards.joins.settings import NPY, SCALAR_DTYPES

_MARK = "?"
_SHOWN: Final = 80
"""Letters of a default that an error shows."""

_CLOSE: Final = 1e-3
"""How far a number may be rounded by its type, relatively: 0.1 is no float16."""

ArrayType: TypeAlias = tuple[str, int | None]
"""The type of numbers, and their dimensions (None: any number)."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Default:
    """The value of an optional field in samples that have no such member.

    Attributes:
        value: As a decoder would give it; each sample gets a copy.
        is_tensor: Whether decoded values are tensors, or arrays where their field asks for them.
    """

    value: Any = None
    is_tensor: bool = False

    def copied(self, *, is_array: bool) -> Any:
        """A copy of the value, which belongs to one sample.

        `is_array` says whether an array is wanted in the place of a tensor.
        """
        value: Any = copy.deepcopy(self.value)
        is_pixels = self.is_tensor and type(value) is np.ndarray
        return as_tensor(value) if is_pixels and not is_array else value

    def fitted(
        self,
        field: str,
        decoders: Collection[DecoderChoice],
        decoded: ArrayType | None = None,
        *,
        is_transformed: bool,
    ) -> "Default":
        """The same value in the type of what the decoders of its field give, where that is known.

        So the type of a column does not depend on which of its samples lack the field. `decoded` is
        this type where the decoders alone do not say it. A transform is given a default as it is.

        Raises:
            ConfigError: The value has not this type.
        """
        if self.value is None:
            return self
        kinds = {decoded or _type_of(decoder) for decoder in decoders}
        kind = kinds.pop() if len(kinds) == 1 else None
        are_pixels = PIXEL_DECODERS.issuperset(decoders)
        if kind is None or (are_pixels and is_transformed):
            are_arrays = are_pixels or (NPY in decoders and not is_transformed)
            return Default(_as_array(self.value) if are_arrays else self.value, are_pixels)
        value = _converted(self.value, *kind)
        if value is None:
            dtype, ndim = kind
            dimensions = f" of {count_of(ndim, 'dimension')}" if ndim else ""
            raise ConfigError(
                f"defaults gives {repr(self.value)[:_SHOWN]} for {field!r}, whose values are "
                f"{np.dtype(dtype).name}{dimensions}; give one of this type, or leave it out, so "
                "that samples without a value get None"
            )
        return Default(value.item() if kind[1] == 0 else value, are_pixels)

    def __eq__(self, other: object) -> bool:
        """Whether the values are equal; arrays have no single answer to `==`."""
        return isinstance(other, Default) and are_same(self.value, other.value)

    def __hash__(self) -> int:
        """One for all, because a value may have none."""
        return hash(Default)


def without_mark(text: str) -> str:
    """The suffixes of a field without the `?` that makes it optional.

    >>> without_mark("png;jpg?")
    'png;jpg'
    """
    return text.rstrip().removesuffix(_MARK)


def suffixes_of(text: str) -> tuple[str, ...]:
    """The suffixes of a field as decoders take them.

    >>> suffixes_of("PNG; jpg?")
    ('png', 'jpg')
    """
    return tuple(part.strip().lower() for part in without_mark(text).split(";"))


def given_defaults(fields: Mapping[str, str], defaults: Mapping[str, Any]) -> dict[str, Default]:
    """The default of each optional field.

    Args:
        fields: Batch key to suffixes.
        defaults: Batch key to value, for those that are not None.

    Raises:
        ConfigError: One is for a field that is not optional, or a `?` is not at the end.
    """
    optional = [name for name, text in fields.items() if without_mark(text) != text]
    for name in defaults:
        if name not in optional:
            raise ConfigError(
                f"defaults names {name!r}, and the optional fields are {optional}; write "
                f"{{{name}: '{fields.get(name, 'SUFFIX')}?'}} in fields, or leave its default out"
            )
    for name, text in fields.items():
        if _MARK in without_mark(text):
            raise ConfigError(
                f"field {name!r} comes from {text!r}: a `?` stands once, after all suffixes, as in "
                "'jpg;png?'"
            )
    return {name: Default(defaults.get(name)) for name in optional}


def _type_of(decoder: DecoderChoice) -> ArrayType | None:
    """The type of the numbers that a decoder gives; None if it is unknown, or gives no numbers."""
    if decoder in SCALAR_DTYPES or decoder in ("int", CLASS):
        return SCALAR_DTYPES.get(str(decoder), "int64"), 0
    if decoder in NUMBER_DECODERS:
        return str(decoder), 1
    if decoder in PIXEL_DECODERS - {LABELS}:
        return "uint8", 3
    return (str(decoder).removeprefix("json_"), None) if decoder in JSON_DECODERS else None


def _as_array(value: Any) -> Any:
    """Numbers, lists of them and tensors as an array; anything else as it is."""
    with suppress(TypeError, ValueError, RuntimeError):  # as in `_converted`
        array = np.asarray(value)
        return array if array.dtype.kind in "biufc" else value
    return value


def _converted(value: Any, dtype: str, ndim: int | None) -> NDArray[Any] | None:
    """The numbers as an array of this type; None if that is impossible or loses something."""
    with suppress(TypeError, ValueError, RuntimeError), np.errstate(all="ignore"):
        given = np.asarray(value)  # lists of several lengths raise, and tensors of a device
        made = given.astype(dtype)
        if given.dtype.kind in "biuf" and ndim in (None, given.ndim):
            return made if np.allclose(made, given, _CLOSE, equal_nan=True) else None
    return None


class LackingField(NamedTuple):
    """An optional field that is in none of the samples that were looked at.

    Attributes:
        name: Of the field.
        suffixes: The suffixes that its members may have.
        looked_at: What was looked at, in words.
        are_all: Whether these are all samples.
    """

    name: str
    suffixes: Sequence[str]
    looked_at: str
    are_all: bool


def require_found(lacking: Iterable[LackingField]) -> None:
    """Refuse fields that all samples lack; where some were not looked at, a warning is logged.

    Raises:
        MissingFieldError: There is such a field.
    """
    for field in lacking:
        message = (
            f"optional field {field.name!r} is in no sample: {field.looked_at} no member with one "
            f"of {list(field.suffixes)}"
        )
        if field.are_all:
            raise MissingFieldError(f"{message}; name another suffix in `fields`, or leave it out")
        _log.warning("%s; if the others have none, name another suffix in `fields`", message)


def lacking_in_all(
    components: Sequence[str], lacking: Sequence[Sequence[LackingField]]
) -> list[LackingField]:
    """The fields that every component of a mixture lacks, as those of the whole mixture.

    Args:
        components: Their names.
        lacking: What each of them lacks. One may lack what another has: labels, for instance.
    """
    by_name = [{field.name: field for field in of_component} for of_component in lacking]
    of_mixture: list[LackingField] = []
    for name in by_name[0]:
        parts = [fields[name] for fields in by_name if name in fields]
        if len(parts) < len(components):
            continue
        named = zip(components, parts, strict=True)
        looked_at = " and ".join(f"of component {each!r} {part.looked_at}" for each, part in named)
        suffixes = dict.fromkeys(suffix for part in parts for suffix in part.suffixes)
        are_all = all(part.are_all for part in parts)
        of_mixture.append(LackingField(name, list(suffixes), looked_at, are_all))
    return of_mixture
