"""The results as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.catalogue import REFERENCE
from benchmarks.peers.results import machine_and_command, not_installed
from benchmarks.peers.table import Values, interval, markdown, number, ratio, spread
from benchmarks.peers.targets import Results, floor, rates, verdicts

_TITLES = {
    "IMG": "IMG: JPEGs of 500 x 375, quality 90, to random crops of 224",
    "SMALL": "SMALL: samples of 200 bytes",
    "TOK": "TOK: samples of 2,048 uint16 tokens",
}
_MONITOR_UNIT = "us a step"
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


def write_report(results: Results, held_by: Mapping[str, str]) -> str:
    """The whole page."""
    parts = ["# Beside other loaders", machine_and_command(results), _verdicts(results, held_by)]
    parts += [_rates(results, data) for data in results.get("rates", {})]
    parts += [_resume(results), _epoch_ends(results), _costs(results), not_installed(results)]
    parts += ["## How it is measured", _EXPLAINED]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdicts(results: Results, held_by: Mapping[str, str]) -> str:
    header = ["what", "best peer's", "ours", "to reach", "reached", "what holds it"]
    return "## What it must show\n\n" + markdown(header, verdicts(results, held_by))


def _rates(results: Results, data: str) -> str:
    rows = rates(results, data)
    facts = results["data"][data]
    reference, least = rows.get(REFERENCE, []), floor(rows)
    header = ["loader", "samples/s", "x webdataset", "% of floor", "first batch, ms",
              "peak PSS, MB", "of it imports"]  # fmt: skip
    cells: list[Sequence[str]] = []
    for name, values in rows.items():
        row = results["rates"][data][name]
        share = ratio(values, least)
        cells.append([
            name,
            interval(values),
            number(ratio(values, reference)),
            number(None if share is None else 100 * share),
            interval(row["first_ms"]) if any(row["first_ms"]) else "-",
            _median(row["peak_pss_mb"]),
            _median(row["imported_mb"]),
        ])  # fmt: skip
    size = f"{facts['samples']:,} samples of {facts['bytes_per_sample']:,} bytes of tar each"
    errors = [f"- {name}: {row['error']}" for name, row in results["rates"][data].items()
              if row["error"]]  # fmt: skip
    failed = "\n\nFailed runs:\n" + "\n".join(errors) if errors else ""
    return f"## {_TITLES[data]}\n\n{size}.\n\n{markdown(header, cells)}{failed}"


def _resume(results: Results) -> str:
    resumed = results.get("resume", {})
    if not resumed:
        return ""
    header = ["loader, SMALL", "at 0 %, ms", "at 50 %, ms", "at 95 %, ms", "95 % / 0 %"]
    cells = [
        [
            name,
            *(interval(row.get(at, [])) for at in ("0", "50", "95")),
            number(ratio(row.get("95", []), row.get("0", []))),
        ]
        for name, row in resumed.items()
    ]
    return f"## First batch after a resume\n\n{markdown(header, cells)}"


def _epoch_ends(results: Results) -> str:
    gaps: dict[str, Values] = results.get("epoch_ends", {})
    if not gaps:
        return ""
    cells = [
        [name, interval(values), number(ratio(values, gaps.get(REFERENCE, [])))]
        for name, values in gaps.items()
    ]
    header = ["loader, 2 workers, 5 ms a sample", "gap, ms", "x webdataset"]
    return f"## Gap at an epoch end, after 0.3 s of validation\n\n{markdown(header, cells)}"


def _costs(results: Results) -> str:
    cells: list[list[str]] = []
    for name, title in (
        ("package_ms", "`import lightning_shards` after Lightning"),
        ("names_ms", "the same with its data module and callbacks"),
    ):
        if name in results.get("imports", {}):
            cells.append([title, interval(results["imports"][name]), "ms"])
    for name, values in results.get("monitor", {}).items():
        title = "bare step of a Lightning loop" if name == "bare" else f"added by {name}"
        cells.append([title, interval(values), _MONITOR_UNIT])
    return "## Costs\n\n" + markdown(["what", "measured", "unit"], cells) if cells else ""


def _median(values: Any) -> str:
    found = spread(values)
    return number(found.median if found else None)
