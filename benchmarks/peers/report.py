"""The results as Markdown: a figure is a ratio of two rows, round by round, with its spread."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from benchmarks.peers.catalogue import REFERENCE
from benchmarks.peers.environment import machine_and_command
from benchmarks.peers.table import (
    Values,
    best,
    interval,
    markdown,
    median,
    number,
    ratios,
)

Results: TypeAlias = Mapping[str, Any]

OURS, FILES, AS_WRITTEN = "ours", "torch DataLoader, files", "webdataset, own decoders"
_POOLS = ("ours, processes", "ours, threads")
_CHECKED = ("ours, threads, crc32", "ours, inline, crc32")
FLOORS = ("floor: transform, 2 threads", "floor: transform, 2 processes")
_TITLES = {
    "IMG": "IMG: JPEGs of 500 x 375, quality 90, to random crops of 224",
    "SMALL": "SMALL: samples of 200 bytes",
    "TOK": "TOK: samples of 2,048 uint16 tokens",
}
_EXPLAINED = """\
Rates are samples per second to a ready batch of 64, with 2 workers where nothing else is said:
median (minimum to maximum) over the rounds. Each run is a fresh process; rounds alternate between
all rows; a ratio is the median of the rounds' ratios. The transform is the same for all rows of IMG
(simplejpeg, OpenCV) but those that are named after their decoders, which are Pillow's in
webdataset's and our own crop in ours. "floor" is that transform alone on bytes in memory; its share
is taken of the faster of two bare threads and two bare processes. The first batch is timed in a
fresh process after its imports, from the construction of the loader on. Memory is the peak of the
sum over all processes of a run, once a second, shared pages counted once, with the pages of mapped
files; imports are what the main process holds before the loader is made, in ours Lightning's with
it. crc32s are counted by zlib-ng, our extra `checksum`. All loaders read the page cache, and
shuffle as their documentation says. Only ratios within one table mean anything on a machine that
others use, too."""


class Figure(NamedTuple):
    """The values of the rounds, and the row that they are of."""

    values: Values
    row: str
    unit: str

    @property
    def cell(self) -> str:
        """As in the table."""
        return f"{interval(self.values, self.unit)}, {self.row}" if self.row else "-"


def write_report(results: Results) -> str:
    """The whole page."""
    parts = ["# Beside other loaders", machine_and_command(results), "## Summary"]
    parts += [summary(results), *(_rates(results, data) for data in results["rates"])]
    parts += [_resume(results), "## How it is measured", _EXPLAINED]
    return "\n\n".join(filter(None, parts)) + "\n"


def summary(results: Results) -> str:
    """The best peer's figure and ours, by what is compared."""
    rows = [(what, theirs.cell, ours.cell) for what, theirs, ours in figures(results)]
    return markdown(["what", "best peer's", "ours"], rows)


def figures(results: Results) -> list[tuple[str, Figure, Figure]]:
    """What is compared, the best peer's figure, and ours."""
    images = _rates_of(results, "IMG")
    peers = [name for name in images if not name.startswith((OURS, "floor"))]
    found = [
        ("IMG, same transform, share of the floor",
         *(_over(images, floor(images), names, " %", 100.0) for names in (peers, _POOLS))),
        ("IMG against webdataset as its users write it (Pillow)",
         *(_over(images, images.get(AS_WRITTEN, []), names) for names in (peers, _POOLS))),
    ]  # fmt: skip
    for data in ("SMALL", "TOK"):
        rows = _rates_of(results, data)
        reference = rows.get(REFERENCE, [])
        everyone = [name for name in rows if not name.startswith((OURS, "floor"))]
        working = [name for name in everyone if "0 workers" not in name]
        found += [
            (f"{data} against webdataset, both with 2 worker processes",
             *(_over(rows, reference, names) for names in (working, _POOLS[:1]))),
            (f"{data}, the best of threads and inline with crc32, against webdataset as above",
             *(_over(rows, reference, names) for names in (everyone, _CHECKED))),
        ]  # fmt: skip
    files, fastest = FILES if FILES in images else "", best(images, _POOLS) or ""
    memory = [
        Figure(results["rates"].get("IMG", {}).get(name, {}).get("peak_pss_mb", []), name, " MB")
        for name in (files, fastest)
    ]
    return [
        *found,
        ("first batch after a resume at 95 % of an epoch, against at 0 %",
         _resumed(results, is_ours=False), _resumed(results, is_ours=True)),
        ("peak PSS of our fastest on IMG, against files under torch's DataLoader", *memory),
    ]  # fmt: skip


def floor(rows: Mapping[str, Values]) -> Values:
    """The transform alone, by two threads or two processes, whichever is faster in a round."""
    pairs = zip(*(rows.get(name, []) for name in FLOORS), strict=False)
    return [max(filter(None, pair), default=None) for pair in pairs]


def _rates_of(results: Results, data: str) -> dict[str, Values]:
    rows = results["rates"].get(data, {})
    return {name: row["samples_per_s"] for name, row in rows.items()}


def _over(
    rows: Mapping[str, Values], reference: Values, names: Sequence[str], unit: str = "x",
    scale: float = 1.0,
) -> Figure:  # fmt: skip
    """The fastest of some rows over the reference."""
    name = best(rows, names) or ""
    return Figure(ratios(rows.get(name, []), reference, scale), name, unit)


def _resumed(results: Results, *, is_ours: bool) -> Figure:
    """Time to the first batch at 95 % over that at 0 %: our slowest, their fastest."""
    shares = {
        name: found
        for name, row in results.get("resume", {}).items()
        if name.startswith(OURS) == is_ours and any(found := ratios(row["95"], row["0"]))
    }
    if not shares:
        return Figure([], "", "x")
    name = (max if is_ours else min)(shares, key=lambda each: median(shares[each]) or 0.0)
    return Figure(shares[name], name, "x")


def _rates(results: Results, data: str) -> str:
    rows, facts = _rates_of(results, data), results["data"][data]
    least = floor(rows)
    header = ["loader", "samples/s", "x webdataset", "% of floor", "first batch, ms",
              "peak PSS, MB", "of it imports"]  # fmt: skip
    cells = [
        [
            name,
            interval(values),
            number(median(ratios(values, rows.get(REFERENCE, [])))),
            number(median(ratios(values, least, 100.0))),
            interval(row["first_ms"]) if any(row["first_ms"]) else "-",
            number(median(row["peak_pss_mb"])),
            number(median(row["imported_mb"])),
        ]
        for (name, values), row in zip(rows.items(), results["rates"][data].values(), strict=True)
    ]
    size = f"{facts['samples']:,} samples of {facts['bytes_per_sample']:,} bytes of tar each"
    table = markdown(header, cells) + failed_runs(results["rates"][data])
    return f"## {_TITLES[data]}\n\n{size}.\n\n{table}"


def failed_runs(rows: Mapping[str, Any]) -> str:
    """What is told of runs that failed, under a table."""
    errors = [f"- {name}: {row['error']}" for name, row in rows.items() if row["error"]]
    return "\n\nFailed runs:\n\n" + "\n".join(errors) if errors else ""


def _resume(results: Results) -> str:
    header = ["loader, SMALL", "at 0 %, ms", "at 50 %, ms", "at 95 %, ms", "95 % / 0 %"]
    cells = [
        [name, *map(interval, row.values()), number(median(ratios(row["95"], row["0"])))]
        for name, row in results.get("resume", {}).items()
    ]
    return f"## First batch after a resume\n\n{markdown(header, cells)}" if cells else ""
