"""The results as Markdown."""

from collections.abc import Mapping, Sequence

from benchmarks.peers.results import machine_and_command, not_installed
from benchmarks.peers.table import interval, markdown, number
from benchmarks.remote.goals import Results, bound_of, goals, ratios
from benchmarks.remote.job import FAST, LINKS, TIMES

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
`setup` of a fit starts. Loaders of one environment and data set are measured one after the other in
one fresh process, in an order that turns round with each round; values are median (minimum to
maximum), and a ratio is the median of the rounds' ratios.

The local rate is that of the same settings over the files, counted from the first batch to the
last one, while as many bytes as each batch has go through proxy and server to nowhere, so that both
rates have the same load beside them. "bound" is the lesser of it and of the link's rate divided by
the bytes of tar of a sample. A tar has 1,024 bytes for a sample of 200, and 5,120 for one of 4,224;
the other formats have little more than the sample. Fetching to the cache has one write of each
piece to a new file in it, which "new files alone" tells; a virtual machine that gives memory back
to its host takes several times as long for it as one that has the memory at hand. Only ratios
within one table mean anything on a machine that others use, too."""


_ROUNDS = "rounds, every second one behind the slower link, too"


def write_report(results: Results, held_by: Mapping[str, str]) -> str:
    """The whole page."""
    header = ["what", "measured", "to reach", "reached", "what holds it"]
    rows = [goal.cells(held_by) for goal in goals(results)]
    parts = ["# Remote shards", machine_and_command(results, _ROUNDS), "## What it must show"]
    parts += [markdown(header, rows)]
    parts += [_epochs(results, data, link) for data in results["data"] for link in LINKS]
    parts += [_firsts(results), _costs(results), not_installed(results), "## How it is measured"]
    explained = _EXPLAINED.format(
        links=" or ".join(LINKS), seconds=results["settings"]["seconds"],
        times=TIMES, blocks=8 * TIMES,
    )  # fmt: skip
    return "\n\n".join(part for part in [*parts, explained] if part) + "\n"


def _epochs(results: Results, data: str, link: str) -> str:
    rows = {
        name.removesuffix(f", {link}"): row
        for name, row in results.get("epochs", {}).get(data, {}).items()
        if name.endswith(link)
    }
    facts = results["data"][data].get(link)
    if not rows or facts is None:
        return ""
    bound = bound_of(results, data, link)
    header = ["loader", "samples/s", "% of bound", "after the first batch", "first batch, ms",
              "MB", "requests", "connections"]  # fmt: skip
    cells: list[Sequence[str]] = [
        [
            name,
            interval(row["samples_per_s"]),
            interval(ratios(row["samples_per_s"], bound, 100.0)),
            interval(row["steady_per_s"]),
            interval(row["first_ms"]),
            interval([None if value is None else value / 1e6 for value in row["bytes"]]),
            interval(row["requests"]),
            interval(row["connections"]),
        ]
        for name, row in rows.items()
    ]
    errors = [f"- {name}: {row['error']}" for name, row in rows.items() if row["error"]]
    failed = "\n\nFailed runs:\n" + "\n".join(errors) if errors else ""
    size = (
        f"{facts['samples']:,} samples of {facts['bytes_per_sample']:,} bytes of tar each, in "
        f"{facts['pieces']:,} pieces; tables of {number(facts['table_bytes'])} bytes a shard"
    )
    return f"## {data}, {link}\n\n{size}.\n\n{markdown(header, cells)}{failed}"


def _firsts(results: Results) -> str:
    firsts = results.get("firsts", {})
    cells = [[name, interval(values)] for name, values in firsts.items()]
    title = "## First batch of 256 IMG, from the construction of the loader on"
    return f"{title}\n\n{markdown(['loader, link, position', 'ms'], cells)}" if cells else ""


def _costs(results: Results) -> str:
    cells = [[name, interval(values)] for name, values in results.get("cpu", {}).items()]
    cells += [
        [f"{name}, cache of 50 %: second epoch / first",
         number(row["second_bytes"] / row["first_bytes"])]
        for name, row in results.get("half_cached", {}).items()
        if row.get("first_bytes")
    ]  # fmt: skip
    cells += [
        [f"the rig, {name}, core-seconds a GB", interval(values)]
        for name, values in results.get("rig", {}).items()
    ]
    return f"## Costs, {FAST}\n\n{markdown(['what', 'measured'], cells)}" if cells else ""
