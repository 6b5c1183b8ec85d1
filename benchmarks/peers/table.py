"""Medians, ratios and Markdown: arithmetic on lists that hold one value a round, None if it failed.

Rounds alternate between all rows, so values of one round saw the same machine, and a ratio is the
median of the rounds' ratios.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Values: TypeAlias = Sequence[float | None]

_DECIMALS = ((0.1, 4), (10, 2), (100, 1))
"""Numbers below the first have as many decimals as the second says."""


def median(values: Values) -> float | None:
    """Of the rounds that did not fail; None if all did."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def ratios(values: Values, others: Values, scale: float = 1.0) -> list[float | None]:
    """Round by round, values over others; None where one of them failed."""
    pairs = zip(values, others, strict=False)
    return [scale * one / other if one is not None and other else None for one, other in pairs]


def best(rows: Mapping[str, Values], names: Sequence[str]) -> str | None:
    """The name of the row with the largest median."""
    medians = {name: found for name in names if (found := median(rows.get(name, []))) is not None}
    return max(medians, key=lambda name: medians[name]) if medians else None


def number(value: float | None, unit: str = "") -> str:
    """As many digits as are worth reading."""
    if value is None:
        return "-"
    decimals = next((decimals for limit, decimals in _DECIMALS if value < limit), 0)
    return f"{value:,.{decimals}f}{unit}"


def interval(values: Values, unit: str = "") -> str:
    """Median, minimum and maximum in one cell."""
    known = [value for value in values if value is not None]
    if not known:
        return "failed" if values else "-"
    return f"{number(median(known), unit)} ({number(min(known))} to {number(max(known))})"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is text, the others are numbers."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])
