"""The results as Markdown."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from benchmarks.peers.environment import machine_and_command
from benchmarks.peers.report import failed_runs
from benchmarks.peers.table import interval, markdown, number, ratios
from benchmarks.remote.job import FAST, LINKS, TIMES, WEBDATASET, WEBDATASET_LONG

Results: TypeAlias = Mapping[str, Any]

_EXPLAINED = """\
nginx serves all files, and a proxy of ours before it holds each request back for 30 ms (the first
one of a connection for 60) and paces answers at 80 MB/s a connection and {links} over all of them.
ours and webdataset read tars over http, webdataset by its curl pipe; MosaicML Streaming and LitData
read their own shards of 64 MB by S3 from the same server. All have two workers, batches of 64, and
the same transform. Each cache is empty; an epoch is counted from the first request of the workers
to the last batch, so that nothing that was fetched before a first batch comes for free; an epoch
that takes longer than {seconds:g} s is counted so far. A long epoch has each shard {times} times,
as other objects, and is counted for {times} times as long; ours reads it with blocks of an eighth
of the shards, {blocks} an epoch, because users have dozens. A first batch is counted from the
construction of the loader on, when all imports are done, those of the fork server as well, which
`setup` of a fit starts. Values are median (minimum to maximum), and a ratio is the median of the
rounds' ratios. A tar has 1,024 bytes for a sample of 200, and 5,120 for one of 4,224; the other
formats have little more than the sample. Only ratios within one table mean anything on a machine
that others use, too."""


def write_report(results: Results) -> str:
    """The whole page."""
    parts = ["# Remote shards", machine_and_command(results)]
    parts += [_epochs(results, data, link) for data in results["data"] for link in LINKS]
    parts += [_firsts(results), _caches(results), "## How it is measured"]
    seconds = results["settings"]["seconds"]
    parts += [
        _EXPLAINED.format(links=" or ".join(LINKS), seconds=seconds, times=TIMES, blocks=8 * TIMES)
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _epochs(results: Results, data: str, link: str) -> str:
    rows = {
        name.removesuffix(f", {link}"): row
        for name, row in results["epochs"].get(data, {}).items()
        if name.endswith(f", {link}")
    }
    facts = results["data"][data].get(link)
    if not rows or facts is None:
        return ""
    header = ["loader", "samples/s", "x webdataset", "after the first batch", "first batch, ms",
              "MB", "requests", "connections"]  # fmt: skip
    cells: list[list[str]] = []
    for name, row in rows.items():
        reference = rows.get(WEBDATASET_LONG if "long" in name else WEBDATASET, {})
        over = ratios(row["samples_per_s"], reference.get("samples_per_s", []))
        megabytes = ratios(row["bytes"], [1e6] * len(row["bytes"]))
        columns = [row["samples_per_s"], over, row["steady_per_s"], row["first_ms"], megabytes]
        columns += [row["requests"], row["connections"]]
        cells.append([name, *map(interval, columns)])
    size = (
        f"{facts['samples']:,} samples of {facts['bytes_per_sample']:,} bytes of tar each; tables "
        f"of {number(facts['table_bytes'])} bytes a shard"
    )
    return f"## {data}, {link}\n\n{size}.\n\n{markdown(header, cells)}{failed_runs(rows)}"


def _firsts(results: Results) -> str:
    cells = [[name, interval(values)] for name, values in results.get("firsts", {}).items()]
    title = "## First batch of 256 IMG, from the construction of the loader on"
    return f"{title}\n\n{markdown(['loader, link, position', 'ms'], cells)}" if cells else ""


def _caches(results: Results) -> str:
    found = results.get("caches", {})
    rows = {
        "warm cache against the first epoch, samples/s": ("warm_per_s", "all_per_s"),
        "cache of 50 %: bytes of the second epoch / of the first": ("second_bytes", "first_bytes"),
    }
    cells = [
        [name, interval(ratios(found.get(one, []), found.get(other, [])))]
        for name, (one, other) in rows.items()
    ]
    return f"## Caches, TOK, {FAST}\n\n{markdown(['what', 'ratio'], cells)}" if found else ""
