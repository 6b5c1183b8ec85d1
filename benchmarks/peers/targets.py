"""What the table has to show: a peer's figure, ours, and whether ours reaches what was set.

Nothing here changes a measurement. What holds a figure that was not reached is written by hand into
`results/held_by.json`, by the name of the row, and shown beside it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, TypeAlias

from benchmarks.peers.catalogue import REFERENCE
from benchmarks.peers.table import Values, best, larger, number, ratio, spread

Results: TypeAlias = Mapping[str, Any]

OURS = "ours"
POOLS_OF_TWO = ("ours, processes", "ours, threads")
CHECKED = ("ours, threads, crc32", "ours, inline, crc32")
FILES = "torch DataLoader, files"
AS_WRITTEN = "webdataset, own decoders"
_MIXES = (
    ("", "ours, threads, mix", {"IMG": 0.95, "SMALL": 0.95}),
    (" of other recipes", "ours, threads, mix of other fields", {"IMG": 0.60, "SMALL": 0.60}),
)
"""What is told of the components, the row, and the least share of one data set's rate."""
_TWO_FLOORS = ("floor: transform, 2 threads", "floor: transform, 2 processes")


@dataclass(frozen=True)
class Figure:
    """A number and the row that it is of."""

    value: float | None
    row: str = ""

    def shown(self, unit: str) -> str:
        """As in the table."""
        return "not measured" if self.value is None else f"{number(self.value)}{unit} ({self.row})"


@dataclass(frozen=True)
class Target:
    """One row of the table.

    Attributes:
        name: what is compared.
        limit: what ours has to reach.
        at_least: whether more is better.
        unit: behind the numbers.
        theirs: the best peer's figure.
        ours: ours.
    """

    name: str
    limit: float
    at_least: bool
    unit: str
    theirs: Callable[[Results], Figure]
    ours: Callable[[Results], Figure]

    def reached(self, results: Results) -> bool | None:
        """None if it was not measured."""
        value = self.ours(results).value
        if value is None or isnan(self.limit):
            return None
        return value >= self.limit if self.at_least else value <= self.limit


def rates(results: Results, data: str) -> dict[str, Values]:
    """Samples per second by row."""
    rows = results.get("rates", {}).get(data, {})
    return {name: row["samples_per_s"] for name, row in rows.items()}


def floor(rows: Mapping[str, Values]) -> Values:
    """The transform alone, by two threads or two processes, whichever is faster in a round."""
    threads, processes = (rows.get(name, []) for name in _TWO_FLOORS)
    return larger(threads, processes)


def peers_of(rows: Mapping[str, Values]) -> list[str]:
    """The rows that are neither ours nor the floor."""
    return [name for name in rows if not name.startswith((OURS, "floor"))]


def _over_floor(rows_of: Callable[[Mapping[str, Values]], Sequence[str]]) -> Any:
    def figure(results: Results) -> Figure:
        rows = rates(results, "IMG")
        name = best(rows, rows_of(rows))
        share = ratio(rows[name], floor(rows)) if name else None
        return Figure(None if share is None else 100 * share, name or "")

    return figure


def _over(
    data: str, reference: str, rows_of: Callable[[Mapping[str, Values]], Sequence[str]]
) -> Callable[[Results], Figure]:
    """The fastest of some rows over the reference."""

    def figure(results: Results) -> Figure:
        rows = rates(results, data)
        name = best(rows, rows_of(rows))
        return Figure(ratio(rows[name], rows.get(reference, [])) if name else None, name or "")

    return figure


def _with_workers(rows: Mapping[str, Values]) -> list[str]:
    return [name for name in peers_of(rows) if "0 workers" not in name]


def _these(*names: str) -> Callable[[Mapping[str, Values]], Sequence[str]]:
    return lambda _: names


def _resumed(results: Results, *, is_ours: bool) -> Figure:
    """Time to the first batch at 95 % over that at 0 %: our slowest, their fastest."""
    found = {
        name: share
        for name, row in results.get("resume", {}).items()
        if name.startswith(OURS) == is_ours
        and (share := ratio(row.get("95", []), row.get("0", []))) is not None
    }
    if not found:
        return Figure(None)
    name = (max if is_ours else min)(found, key=lambda each: found[each])
    return Figure(found[name], name)


def _gap(results: Results) -> Figure:
    """Ours, the slower of both kinds, over webdataset's."""
    gaps = results.get("epoch_ends", {})
    shares = {
        name: share
        for name in ("ours, resampled", "ours, shuffled")
        if (share := ratio(gaps.get(name, []), gaps.get(REFERENCE, []))) is not None
    }
    if not shares:
        return Figure(None)
    name = max(shares, key=lambda each: shares[each])
    return Figure(shares[name], name)


def _gap_of_peer(results: Results) -> Figure:
    return Figure(1.0 if results.get("epoch_ends") else None, REFERENCE)


def _memory(results: Results, name: str | None) -> Figure:
    return Figure(_median_of(results, name or "", "peak_pss_mb"), name or "")


def _memory_of_our_fastest(results: Results) -> Figure:
    return _memory(results, best(rates(results, "IMG"), POOLS_OF_TWO))


def _beside_imports(results: Results, figure: Figure) -> Figure:
    imported = _median_of(results, figure.row, "imported_mb")
    if figure.value is None or imported is None:
        return Figure(None)
    return Figure(figure.value - imported, figure.row)


def _median_of(results: Results, row: str, key: str) -> float | None:
    found = spread(results.get("rates", {}).get("IMG", {}).get(row, {}).get(key, []))
    return found.median if found else None


def _or_nothing(value: float | None) -> float:
    """No figure is below NaN."""
    return float("nan") if value is None else value


def _overhead(part: str, name: str) -> Callable[[Results], Figure]:
    def figure(results: Results) -> Figure:
        found = spread(results.get(part, {}).get(name, []))
        return Figure(found.median if found else None, name)

    return figure


def targets(results: Results) -> list[Target]:
    """All rows but mixtures'; memory is to reach what was measured of torch's DataLoader."""
    files = _memory(results, FILES)
    beside = _beside_imports(results, files)
    webdataset = "against webdataset, both with 2 worker processes"
    any_pool = "our best of threads and inline, crc32 checked, against webdataset with 2 processes"
    small, tokens = _over("SMALL", REFERENCE, _with_workers), _over("TOK", REFERENCE, _with_workers)
    all_small, all_tokens = _over("SMALL", REFERENCE, peers_of), _over("TOK", REFERENCE, peers_of)
    processes = _these("ours, processes")
    return [
        Target("IMG, same transform, share of the floor", 95, True, " %",
               _over_floor(peers_of), _over_floor(_these(*POOLS_OF_TWO))),
        Target("IMG against webdataset as its users write it (Pillow)", 3.5, True, "x",
               _over("IMG", AS_WRITTEN, peers_of), _over("IMG", AS_WRITTEN, _these(*POOLS_OF_TWO))),
        Target(f"SMALL {webdataset}", 10, True, "x", small, _over("SMALL", REFERENCE, processes)),
        Target(f"SMALL, {any_pool}", 30, True, "x", all_small,
               _over("SMALL", REFERENCE, _these(*CHECKED))),
        Target(f"TOK {webdataset}", 8, True, "x", tokens, _over("TOK", REFERENCE, processes)),
        Target(f"TOK, {any_pool}", 20, True, "x", all_tokens,
               _over("TOK", REFERENCE, _these(*CHECKED))),
        Target("first batch after a resume at 95 % of an epoch, against at 0 %", 1.1, False, "x",
               lambda each: _resumed(each, is_ours=False),
               lambda each: _resumed(each, is_ours=True)),
        Target("gap at an epoch end, 2 workers, against webdataset", 0.05, False, "x",
               _gap_of_peer, _gap),
        Target("peak PSS of our fastest on IMG, against files under torch's DataLoader",
               _or_nothing(files.value), False, " MB", lambda _: files, _memory_of_our_fastest),
        Target("the same without what is imported before, Lightning in ours",
               _or_nothing(beside.value), False, " MB", lambda _: beside,
               lambda each: _beside_imports(each, _memory_of_our_fastest(each))),
        Target("`import lightning_shards` after Lightning's", 30, False, " ms",
               lambda _: Figure(None), _overhead("imports", "package_ms")),
        Target("DataThroughputMonitor in a bare Lightning loop, a step", 10, False, " us",
               _overhead("monitor", "self.log"), _overhead("monitor", "DataThroughputMonitor")),
    ]  # fmt: skip


def mixtures() -> list[Target]:
    """Mixes of both halves of a data set against the data set."""
    return [
        Target(f"{data}, a mix of two components{alike}, against one data set", limit, True, "x",
               lambda _: Figure(None), _over(data, "ours, threads", _these(row)))
        for alike, row, limits in _MIXES
        for data, limit in limits.items()
    ]  # fmt: skip


def verdicts(results: Results, held_by: Mapping[str, str]) -> list[list[str]]:
    """The rows of the table: what, peer's, ours, to reach, reached, what holds it."""
    rows: list[list[str]] = []
    for target in [*targets(results), *mixtures()]:
        reached = target.reached(results)
        word = "at least" if target.at_least else "at most"
        holds = held_by.get(target.name, "not yet known") if reached is False else ""
        rows.append([
            target.name,
            target.theirs(results).shown(target.unit),
            target.ours(results).shown(target.unit),
            f"{word} {number(target.limit)}{target.unit}"
            if not isnan(target.limit)
            else "not measured",
            {True: "yes", False: "no", None: "not measured"}[reached],
            holds,
        ])  # fmt: skip
    return rows
