"""What the table has to show: a figure of each round, and whether their median reaches the goal.

Nothing here changes a measurement. What holds a figure that was not reached is written by hand into
`results/remote_held_by.json`, by the name of the row, and shown beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmarks.peers.table import Values, interval, larger, number, spread
from benchmarks.remote.job import (
    FAST,
    LINKS,
    LITDATA,
    LOCAL,
    LONG,
    MOSAIC,
    OURS,
    SLOW,
    TIMES,
    WEBDATASET,
    WEBDATASET_LONG,
)

Results: TypeAlias = Mapping[str, Any]

_PERCENT = 100.0
_OURS = {OURS: "", LONG: ", long epoch"}
_WEBDATASET = {OURS: WEBDATASET, LONG: WEBDATASET_LONG}
_OVER_CURL = {"IMG": 1.3, "SMALL": 4.0, "TOK": 4.0}


@dataclass(frozen=True)
class Goal:
    """One row.

    Attributes:
        name: What is measured, and behind which link.
        values: One a round.
        limit: What their median has to reach.
        at_least: Whether more is better.
        unit: Behind the numbers.
    """

    name: str
    values: Values
    limit: float
    at_least: bool
    unit: str = ""

    @property
    def reached(self) -> bool | None:
        """None if it was not measured."""
        found = spread(self.values)
        if found is None:
            return None
        return found.median >= self.limit if self.at_least else found.median <= self.limit

    def cells(self, held_by: Mapping[str, str]) -> list[str]:
        """What, measured, to reach, reached, what holds it."""
        word = "at least" if self.at_least else "at most"
        measured = interval(self.values) if spread(self.values) else "not measured"
        reached = {True: "yes", False: "no", None: "not measured"}[self.reached]
        holds = held_by.get(self.name, "not yet known") if self.reached is False else ""
        return [self.name, measured, f"{word} {number(self.limit)}{self.unit}", reached, holds]


def goals(results: Results) -> list[Goal]:
    """All rows, in the order of the page."""
    rows = [
        *_shares(results),
        *_over_webdataset(results),
        *_over_others(results),
        *_firsts(results),
        *_requests(results),
        *_caches(results),
    ]
    return [*rows, *_cpu(results)]


def values_of(results: Results, data: str, loader: str, link: str, what: str) -> Values:
    """One value a round of a loader's epochs; empty if it was not run."""
    return results.get("epochs", {}).get(data, {}).get(f"{loader}, {link}", {}).get(what, [])


def ratios(values: Values, others: Values, scale: float = 1.0) -> list[float | None]:
    """Round by round, values over others; None where one of them failed."""
    return [
        scale * value / other if value is not None and other else None
        for value, other in zip(values, others, strict=False)
    ]


def bound_of(results: Results, data: str, link: str) -> list[float | None]:
    """Samples per second that link and our own reading of local files allow, round by round."""
    local = values_of(results, data, LOCAL, FAST, "samples_per_s")
    facts = results["data"][data].get(link)
    if facts is None:
        return []
    by_link = LINKS[link] / facts["bytes_per_sample"]
    return [None if rate is None else min(rate, by_link) for rate in local]


def _shares(results: Results) -> Iterator[Goal]:
    for data in results["data"]:
        for link, limit in ((FAST, 90), (SLOW, 95)):
            for loader, how in _OURS.items():
                rates = values_of(results, data, loader, link, "samples_per_s")
                shares = ratios(rates, bound_of(results, data, link), _PERCENT)
                name = f"{data}, share of the least of link and own local rate{how}, {link}"
                yield Goal(name, shares, limit, True, " %")


def _over_webdataset(results: Results) -> Iterator[Goal]:
    for data in results["data"]:
        for link, limit in ((FAST, _OVER_CURL[data]), (SLOW, 1.0)):
            for loader, how in _OURS.items():
                ours, theirs = _rates(results, data, link, loader, _WEBDATASET[loader])
                name = f"{data} against webdataset's curl pipe, two workers each{how}, {link}"
                yield Goal(name, ratios(ours, theirs), limit, True, "x")


def _over_others(results: Results) -> Iterator[Goal]:
    for data in results["data"]:
        for link, limit in ((FAST, 1.2), (SLOW, 1.0)):
            ours, mosaic, litdata = _rates(results, data, link, OURS, MOSAIC, LITDATA)
            better = larger(mosaic, litdata)
            name = f"{data} against the better of MosaicML Streaming and LitData, cold, {link}"
            yield Goal(name, ratios(ours, better), limit, True, "x")


def _rates(results: Results, data: str, link: str, *loaders: str) -> list[Values]:
    return [values_of(results, data, loader, link, "samples_per_s") for loader in loaders]


def _firsts(results: Results) -> Iterator[Goal]:
    firsts = results.get("firsts", {})
    for link, limit_s in ((FAST, 1.5), (SLOW, 4.0)):
        start, late = (firsts.get(f"{OURS}, {link}, {at}", []) for at in ("0 %", "95 %"))
        seconds = [None if value is None else value / 1000 for value in start]
        yield Goal(f"first batch of 256 IMG, tables in it, {link}", seconds, limit_s, False, " s")
        if link == FAST:
            theirs = firsts.get(f"{WEBDATASET}, {link}, 0 %", [])
            name = f"the same against webdataset's, {link}"
            yield Goal(name, ratios(start, theirs), 3.0, False, "x")
        name = f"first batch after a resume at 95 % against at 0 %, {link}"
        yield Goal(name, ratios(late, start), 1.1, False, "x")


def _requests(results: Results) -> Iterator[Goal]:
    for data, facts in results["data"].items():
        there = facts.get(FAST)
        if there is None:
            continue
        for loader, times, epoch in ((OURS, 1, "an epoch"), (LONG, TIMES, "a long epoch")):
            name = f"{data}, {epoch}, tables in it, {FAST}:"
            for what, of, limit in (
                ("bytes fetched / needed", ("bytes", "tar_bytes"), 1.05),
                ("GETs / pieces", ("requests", "pieces"), 1.15),
            ):
                counted = whole_epochs(results, data, loader, of[0])
                needed = [float(times * there[of[1]])] * len(counted)
                yield Goal(f"{name} {what}", ratios(counted, needed), limit, False)


def whole_epochs(results: Results, data: str, loader: str, what: str) -> list[float | None]:
    """A counter of our epochs behind the fast link, where they were read to their end."""
    samples = results["data"][data][FAST]["samples"] * (TIMES if loader == LONG else 1)
    counted = values_of(results, data, loader, FAST, what)
    read = values_of(results, data, loader, FAST, "samples")
    return [
        value if number is not None and samples - number < results["settings"]["batch"] else None
        for value, number in zip(counted, read, strict=True)
    ]


def _caches(results: Results) -> Iterator[Goal]:
    found: Mapping[str, Sequence[float | None]] = results.get("caches", {})
    for name, one, other, limit, at_least in (
        ("cache of 50 %: bytes of the second epoch / of the first",
         "second_bytes", "first_bytes", 0.55, False),
        ("long epochs, cache of 50 %: bytes of the second / of the first",
         "long_second_bytes", "long_first_bytes", 0.55, False),
        ("cache of two blocks against one that holds all, first epoch",
         "two_blocks_per_s", "all_per_s", 0.95, True),
        ("warm cache against local files", "warm_per_s", "local_per_s", 0.97, True),
    ):  # fmt: skip
        values = ratios(found.get(one, []), found.get(other, []))
        yield Goal(f"TOK, {name}, {FAST}", values, limit, at_least, "" if "bytes" in one else "x")


def _cpu(results: Results) -> Iterator[Goal]:
    found = results.get("cpu", {})
    for scheme in ("http", "s3"):
        name = f"{scheme}: CPU of fetching to the cache, {FAST}"
        yield Goal(name, found.get(f"{scheme}, to the cache, s a GB", []), 1.0, False, " s a GB")
        name = f"{scheme}: CPU of small ranges, {FAST}"
        values = found.get(f"{scheme}, small ranges, ms a request", [])
        yield Goal(name, values, 0.5, False, " ms a request")
