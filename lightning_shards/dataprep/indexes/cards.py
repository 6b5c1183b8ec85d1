"""The dataset card for the Hugging Face Hub, which lists the tars of each split and the counts."""

import fnmatch
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lightning_shards.errors import ConfigError
from lightning_shards.shards.beside import MAX_INDEX_BYTES
from lightning_shards.shards.files import read_regular, replace_file

CARD: Final = "README.md"
MARK: Final = "<!-- written by lightning-shards index -->"

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_CARD = re.compile(
    r"---\nsize_categories:\n- \S+\nconfigs:\n- config_name: default\n  data_files:\n"
    r'(?P<splits>(?:  - split: \w+\n    path:\n(?:    - ".*"\n)+)+)---\n\n'
    + re.escape(f"{MARK}\n\n| split | shards | samples |\n|---|---|---|\n")
    + r"(?P<rows>(?:\| \w+ \| \d[\d,]{0,20} \| [\d,]+ \|\n)+)"
)
_SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B")
_FOUR_DIGITS: Final = 0xFFFF  # of a letter after \u
_LARGER = ("1B<n<10B", "10B<n<100B", "100B<n<1T", "n>1T")


def write_card(root: Path, splits: Mapping[str, Sequence[str]], counts: Mapping[str, int]) -> Path:
    """Write the card into the data set's folder.

    Args:
        root: The folder that will be uploaded.
        splits: Shards of each split by its name, as paths below root.
        counts: Samples of each shard.

    Raises:
        ConfigError: There is a README that this package did not write or that was edited, or a name
            that a card cannot have.
        FileAccessError: The existing README cannot be read, or the card cannot be written.
    """
    path = root / CARD
    if os.path.exists(path):  # noqa: PTH110 never raises
        listed_in_card(read_regular(path, MAX_INDEX_BYTES), str(path))
    for shard in counts:
        if _SURROGATE.search(shard):
            raise ConfigError(
                f"the path {shard!a} is not UTF-8, as a card for the Hub is; rename the file or "
                "folder, or leave the format card out"
            )
    replace_file(path, card_text(root, splits, counts))
    return path


class ListedSplit(NamedTuple):
    """The shards of a split in a card: their patterns, as paths below its folder, and number."""

    patterns: list[str]
    shards: int


def listed_in_card(data: bytes, source: str) -> list[ListedSplit]:
    """What an earlier card lists, split by split; `source` only serves the message.

    Raises:
        ConfigError: It was written or edited by hand.
    """
    edited = ConfigError(
        f"{source} is not overwritten: it was written or edited by hand; move it away first"
    )
    card = _CARD.fullmatch(data.decode("utf-8", "replace"))
    if card is None:
        raise edited
    try:
        patterns = [
            list(map(json.loads, re.findall(r'- (".*")\n', split)))
            for split in card["splits"].split("  - split:")[1:]
        ]
    except ValueError as error:
        raise edited from error
    counts = [int(row.split(" | ")[1].replace(",", "")) for row in card["rows"].splitlines()]
    return [ListedSplit(*listed) for listed in zip(patterns, counts, strict=False)]


def card_text(root: Path, splits: Mapping[str, Sequence[str]], counts: Mapping[str, int]) -> str:
    """The contents of the card."""
    lines = ["---", "size_categories:", f"- {_size_category(sum(counts.values()))}", "configs:"]
    lines += ["- config_name: default", "  data_files:"]
    for split, shards in splits.items():
        lines += [f"  - split: {split}", "    path:"]
        lines += [f"    - {_quoted(pattern)}" for pattern in _patterns(root, shards)]
    lines += ["---", "", MARK, "", "| split | shards | samples |", "|---|---|---|"]
    for split, shards in splits.items():
        samples = sum(counts[shard] for shard in shards)
        lines.append(f"| {split} | {len(shards):,} | {samples:,} |")
    return "\n".join([*lines, ""])


def _quoted(name: str) -> str:
    """A name as a JSON string that is one of YAML, too, which lacks some letters as they are."""
    return "".join(
        letter if letter.isprintable() or ord(letter) > _FOUR_DIGITS else f"\\u{ord(letter):04x}"
        for letter in json.dumps(name, ensure_ascii=False)
    )


def _size_category(samples: int) -> str:
    """The Hub's name for a number of samples."""
    digits = len(str(samples))
    return (*_SIZES, *_LARGER)[min(max(digits - 3, 0), len(_SIZES) + len(_LARGER) - 1)]


def _patterns(root: Path, shards: Sequence[str]) -> list[str]:
    """One pattern that matches exactly these files of their folder; otherwise their names."""
    folders = {os.path.dirname(shard) for shard in shards}  # noqa: PTH120 - paths below root
    if len(folders) == 1 and len(shards) > 1:
        pattern = os.path.commonprefix(list(shards)) + "*.tar"  # noqa: RUF071 letters are meant
        names = [path.relative_to(root).as_posix() for path in (root / folders.pop()).iterdir()]
        if set(fnmatch.filter(names, pattern)) == set(shards):
            return [pattern]
    return list(shards)
