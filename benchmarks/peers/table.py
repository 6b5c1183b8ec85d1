"""Medians, ratios and Markdown: arithmetic on lists that hold one value a round, None if it failed.

Rounds alternate between all rows, so values of one round saw the same machine, and a ratio is the
median of the rounds' ratios.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

Values: TypeAlias = Sequence[float | None]

_DECIMALS = ((0.1, 4), (10, 2), (100, 1))
"""Numbers below the first have as many decimals as the second says."""


class Spread(NamedTuple):
    """The median of some rounds and what it lies between."""

    median: float
    low: float
    high: float


def spread(values: Values) -> Spread | None:
    """Of the rounds that did not fail; None if all did."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.median(known), min(known), max(known))


def ratio(values: Values, reference: Values) -> float | None:
    """The median of the rounds' ratios; None if no round has both."""
    pairs = [
        each / other
        for each, other in zip(values, reference, strict=False)
        if each is not None and other
    ]
    return statistics.median(pairs) if pairs else None


def larger(one: Values, other: Values) -> list[float | None]:
    """Round by round the larger value."""
    if not one or not other:
        return list(one or other)
    return [
        max((each for each in pair if each is not None), default=None)
        for pair in zip(one, other, strict=True)
    ]


def best(rows: Mapping[str, Values], names: Sequence[str]) -> str | None:
    """The name of the row with the largest median."""
    medians = {name: found.median for name in names if (found := spread(rows.get(name, [])))}
    return max(medians, key=lambda name: medians[name]) if medians else None


def number(value: float | None) -> str:
    """As many digits as are worth reading."""
    if value is None:
        return "-"
    decimals = next((decimals for limit, decimals in _DECIMALS if value < limit), 0)
    return f"{value:,.{decimals}f}"


def interval(values: Values) -> str:
    """Median, minimum and maximum in one cell."""
    found = spread(values)
    if found is None:
        return "failed"
    return f"{number(found.median)} ({number(found.low)} to {number(found.high)})"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is text, the others are numbers."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(_padded(row, widths)) + " |" for row in lines)


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *others = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
