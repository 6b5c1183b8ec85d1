"""Expansion of braces in shard patterns, and the count of the strings that it gives.

Strings are counted before any are expanded: `{0..9999999999}` is fifteen letters long and would
fill the memory. The count is of what the package `braceexpand` gives.
"""

import re
from collections.abc import Iterator
from typing import Final

from braceexpand import alphabet, braceexpand

_INT_RANGE: Final = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?\Z")
_CHAR_RANGE: Final = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?\Z")
_MAX_DIGITS: Final = 18
"""A number with more digits makes a range that no memory holds; Python reads at most 4,300."""


def expand_braces(pattern: str) -> Iterator[str]:
    """The strings that the pattern stands for, in bash's order.

    Raises:
        ValueError: A brace is not closed.
    """
    return iter(braceexpand(pattern))


def nesting_depth(pattern: str) -> int:
    """The most braces that are open at once; counting takes one pass for each level."""
    depth = deepest = 0
    for _, letter in _unescaped(pattern):
        depth += (letter == "{") - (letter == "}")
        deepest = max(deepest, depth)
    return deepest


def count_expanded(pattern: str) -> int:
    r"""How many strings `expand_braces` gives, if all braces are closed.

    >>> count_expanded("{a,b}-{000..999}.tar")
    2000
    >>> count_expanded(r"\{a,b\}")
    1
    """
    count, depth, start = 1, 0, 0
    for position, letter in _unescaped(pattern):
        if letter == "{":
            start = position + 1 if depth == 0 else start
            depth += 1
        elif letter == "}":
            depth -= 1
            count *= _count_in(pattern[start:position]) if depth == 0 else 1
    return count


def _count_in(inner: str) -> int:
    """How many strings a pair of braces with this text in it stands for."""
    numbers = _INT_RANGE.match(inner)
    if numbers:
        first, last, step = numbers.groups()
        if max(map(len, (first, last, step or ""))) > _MAX_DIGITS:
            return 10**_MAX_DIGITS
        return abs(int(last) - int(first)) // (int(step or 1) or 1) + 1
    letters = _CHAR_RANGE.match(inner)
    if letters:
        first, last, step = letters.groups()
        step = (step or "1")[:_MAX_DIGITS]  # a longer one steps over all letters, too
        distance = abs(alphabet.index(last) - alphabet.index(first))
        return distance // (int(step) or 1) + 1
    return sum(map(count_expanded, _alternatives(inner)))


def _alternatives(inner: str) -> Iterator[str]:
    """The texts between the commas, without splitting at commas of inner braces."""
    depth, start = 0, 0
    for position, letter in _unescaped(inner):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            yield inner[start:position]
            start = position + 1
    yield inner[start:]


def _unescaped(text: str) -> Iterator[tuple[int, str]]:
    """The letters with their positions, except backslashes and the letters they escape."""
    return ((match.start(), match[0]) for match in _LETTER.finditer(text) if len(match[0]) == 1)


_LETTER: Final = re.compile(r"\\.|.", re.DOTALL)
