"""The classes of a field by name, and `classes.json` beside the shards, which has them.

The file is a JSON object of numbers by name, like `class_to_idx` of torchvision, or a list of names
in the order of their numbers. It belongs to the field `cls`, where `pack` stores numbers.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, cast

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.shards.files import is_count, read_beside
from lightning_shards.shards.urls import is_local, redact, split_url

CLASSES: Final = "classes.json"
CLASS_SUFFIX: Final = "cls"
"""The suffix of the members in which `pack` stores the numbers of classes."""

_SHOWN: Final = 80  # letters of a value that a message shows
_MOST_SHOWN: Final = 10  # names

DIGEST_LENGTH: Final = 16  # hex digits

ClassFiles = Mapping[str, bytes]
"""By URL of a remote folder what is in its `classes.json`; a folder that has none is left out."""

_log = logging.getLogger(__name__)

_FORM: Final = (
    'a list of names, as in ["cat", "dog"], or a mapping from name to number, as in '
    '{"cat": 0, "dog": 1}'
)


@dataclass(frozen=True)
class ClassNames:
    """The numbers of classes by name.

    Attributes:
        numbers: No two names have one number.
        source: Where they come from, for messages.
    """

    numbers: Mapping[str, int] = field(hash=False)
    source: str = field(compare=False)

    def number_of(self, label: bytes) -> int:
        """The number of a label: the name of a class, or its number if no name is itself a number.

        Spaces and line ends around a label are left out.

        Raises:
            SampleError: There is no such class.
        """
        numbers = self._numbers_by_label
        number = numbers.get(label, numbers.get(label.strip()))
        if number is None:
            shown = label.strip()[:_SHOWN].decode("utf-8", "replace")
            remedy = f"correct the label, or add the class to {self.source}"
            if label.strip().isdigit():
                remedy = "decode it as 'int' if labels are numbers"
            names = ", ".join(map(repr, islice(self.numbers, _MOST_SHOWN)))
            more = ", ..." if len(self.numbers) > _MOST_SHOWN else ""
            raise SampleError(
                f"{shown!r} is none of the {len(self.numbers):,} classes of {self.source} "
                f"({names}{more}); {remedy}"
            )
        return number

    def name_of(self, text: str) -> str:
        """The name of the class with this number; empty if there is none."""
        return self._names_by_number.get(text.strip(), "")

    @property
    def renumbered(self) -> str | None:
        """A name that is itself a number, but not that of its class; None if there is none."""
        numbers = ((name, number) for name, number in self.numbers.items() if name.isdecimal())
        others = (name for name, number in numbers if (name.lstrip("0") or "0") != str(number))
        return next(others, None)

    def digest(self) -> str:
        """The identity of the names with their numbers: 16 hex digits."""
        text = json.dumps(self.numbers, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]

    @cached_property
    def _numbers_by_label(self) -> dict[bytes, int]:
        # JSON can hold half a letter
        labels = {name.encode("utf-8", "surrogatepass"): no for name, no in self.numbers.items()}
        if not any(map(str.isdecimal, self.numbers)):
            labels |= {b"%d" % number: number for number in self.numbers.values()}
        return labels

    @cached_property
    def _names_by_number(self) -> dict[str, str]:
        return {str(number): name for name, number in self.numbers.items()}


def numbered_classes(given: object, source: str) -> ClassNames:
    """The classes in a list of names, in the order of their numbers, or in numbers by name.

    Numbers may be left out, as by `pack` where a folder has no sample of some classes.

    Args:
        given: The list or the mapping.
        source: Where it comes from, for messages.

    Raises:
        ConfigError: It is something else, or has no name; a name is empty or no text, or a name or
            a number is given twice.
    """
    numbers, taken = dict[str, int](), set[int]()
    for name, number in _pairs(given, source):
        if not isinstance(name, str) or not name.strip() or not is_count(number):
            raise ConfigError(
                f"{source} has {name!r}: {number!r} in place of the name of a class and its number "
                f"of 0 or more; write {_FORM}"
            )
        if name in numbers or number in taken:
            raise ConfigError(
                f"{source} has the class {name!r} twice, or another one with its number {number}; "
                "give each class one number of its own"
            )
        numbers[name] = number
        taken.add(number)
    if not numbers:
        raise ConfigError(f"{source} names no class; name at least one")
    return ClassNames(numbers, source)


def _pairs(given: object, source: str) -> Iterable[tuple[object, object]]:
    if isinstance(given, Mapping):
        return cast("Mapping[object, object]", given).items()
    if isinstance(given, list | tuple):
        names = cast("Sequence[object]", given)
        return [(name, number) for number, name in enumerate(names)]
    raise ConfigError(f"{source} must be {_FORM}; got {given!r:.{_SHOWN}}")


def read_class_file(path: Path) -> ClassNames | None:
    """The classes in a local file of the form of `classes.json`; None if it cannot be read.

    Raises:
        ConfigError: It is not JSON of names and numbers.
    """
    data = read_beside(path)
    return None if data is None else _parsed(data, str(path))


def found_classes(
    urls: Iterable[str], remote: ClassFiles | None = None, level: int = logging.DEBUG
) -> Iterator[ClassNames]:
    """The classes in the folders of these shards; files of another form are logged at a level."""
    for folder in _folders(urls):
        try:
            if (classes := _classes_in(folder, remote or {})) is not None:
                yield classes
        except ConfigError as error:
            _log.log(level, "passed over: %s", error)


def agreed_classes(urls: Iterable[str], remote: ClassFiles | None = None) -> ClassNames:
    """The classes that every folder of these shards has.

    Args:
        urls: The shards.
        remote: What was found in the remote folders among theirs.

    Raises:
        ConfigError: A folder has none, or two folders have different ones.
    """
    found = {folder: _classes_in(folder, remote or {}) for folder in _folders(urls)}
    lacking = [redact(folder) or "." for folder, classes in found.items() if classes is None]
    classes = same_classes(found.values())
    if lacking or classes is None:
        raise ConfigError(
            f"the decoder 'class' takes the numbers of classes from {CLASSES} beside the "
            f"shards, and {lacking[0]} has none that can be read; write one there, {_FORM}, or "
            "give the names in the configuration, as in classes: {label: [cat, dog]}"
        )
    return classes


def known_classes(urls: Iterable[str], remote: ClassFiles | None = None) -> ClassNames | None:
    """The classes that the folders of these shards have; None if none has any that can be read.

    A file of another form is passed over with a warning.

    Raises:
        ConfigError: Two folders have different ones.
    """
    return same_classes(found_classes(urls, remote, logging.WARNING))


def _classes_in(folder: str, remote: ClassFiles) -> ClassNames | None:
    if is_local(folder):
        return read_class_file(Path(folder) / CLASSES)
    data = remote.get(folder)
    return None if data is None else _parsed(data, f"{redact(folder)}/{CLASSES}")


def _parsed(data: bytes, source: str) -> ClassNames:
    """The classes in the bytes of a `classes.json`; errors as of `read_class_file`."""
    try:
        content: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is no JSON: {error}; write {_FORM}") from error
    return numbered_classes(content, source)


def _folders(urls: Iterable[str]) -> dict[str, None]:
    """The folders of shards, each once, in the order of the shards."""
    return dict.fromkeys(split_url(url)[0] for url in urls)


def same_classes(found: Iterable[ClassNames | None]) -> ClassNames | None:
    """The classes, which must be the same in all places that have any; None: no place has any.

    Raises:
        ConfigError: Two are different.
    """
    known = [classes for classes in found if classes is not None]
    for first, other in pairwise(known):
        differing = first.numbers.items() ^ other.numbers.items()
        if differing:
            name, _ = min(differing)
            raise ConfigError(
                f"{first.source} and {other.source} have different classes: {name!r} is "
                f"{first.numbers.get(name, 'absent')} and {other.numbers.get(name, 'absent')}; "
                "pack their shards again from one folder or table, name the classes of both in one "
                "list of the split, as in classes: {label: [cat, dog]}, read them apart, or, if "
                "they are of two fields, tell the model their numbers in its own settings"
            )
    return known[0] if known else None
