"""Install the peers, make the data, measure, print: `python -m benchmarks.peers`, from the root.

The first time also installs and makes the data. `--quick` only checks that all of it works, on tiny
data and without peers that have to be installed, unless they are named: its figures mean nothing.
The result of the last whole run is kept in `benchmarks/results`; runs with `--quick`, `--only` or
`--peers` write beside the data.
"""

import argparse
from pathlib import Path

from benchmarks.peers.campaign import Campaign
from benchmarks.peers.catalogue import ALL, ARRAYS, chosen
from benchmarks.peers.environment import ROOT, install_base, install_peer
from benchmarks.peers.job import Data
from benchmarks.peers.report import write_report
from benchmarks.peers.results import describe_run, write_results

SIZES = {"IMG": 4096, "SMALL": 200_000, "TOK": 40_000}
QUICK_SIZES = {"IMG": 1024, "SMALL": 20_000, "TOK": 4_000}
QUICK_DATA, QUICK_PEERS = ("IMG", "SMALL"), ["files"]
SHARDS, QUICK_SHARDS = 16, 4
SECONDS, QUICK_SECONDS = 1.0, 0.2
KEPT = ROOT / "benchmarks" / "results"
HELD_BY = KEPT / "held_by.json"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options; those left out depend on `--quick`."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="tiny data, few peers, one round")
    parser.add_argument("--only", metavar="A,B", help=f"data sets: {','.join(ALL)}")
    parser.add_argument("--peers", metavar="A,B", help="these beside webdataset and ours")
    parser.add_argument("--repeats", type=int, help="rounds (3)")
    parser.add_argument("--seconds", type=float, help=f"counted in each run ({SECONDS})")
    parser.add_argument("--timeout", type=float, default=120, help="seconds after which a run ends")
    parser.add_argument("--folder", type=Path, help="for environments and data")
    parser.add_argument("--out", type=Path, help="for peers.json and peers.md")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name.lower()}-samples", type=int, help=f"({size:,})")
    options = parser.parse_args(arguments)
    unknown = set(_names(options.only) or ()) - set(ALL)
    if unknown:
        parser.error(f"--only knows {', '.join(ALL)}, not {', '.join(sorted(unknown))}")
    return options


def sizes(options: argparse.Namespace) -> dict[str, Data]:
    """The data sets that are asked for."""
    defaults = QUICK_SIZES if options.quick else SIZES
    shards = QUICK_SHARDS if options.quick else SHARDS
    return {
        name: Data(name, getattr(options, f"{name.lower()}_samples") or defaults[name], shards)
        for name in _names(options.only) or (QUICK_DATA if options.quick else ALL)
    }


def main() -> None:
    """Run all of it; what was measured is written after each round."""
    options = parse()
    folder = options.folder or Path.home() / ".cache" / "lightning_shards_benchmarks"
    is_whole = not (options.quick or options.only or options.peers)
    out = options.out or (KEPT if is_whole else folder / "results")
    peers = chosen(_names(options.peers) or (QUICK_PEERS if options.quick else None))
    base = install_base(folder / "environments")
    installed = {peer.name: install_peer(folder / "environments", base, peer) for peer in peers}
    campaign = Campaign(
        peers, installed, str(base), str(folder / "data"), sizes(options),
        options.seconds or (QUICK_SECONDS if options.quick else SECONDS), options.timeout,
    )  # fmt: skip
    repeats = options.repeats or (1 if options.quick else 3)
    campaign.results |= describe_run(
        base, "benchmarks.peers", installed, repeats=repeats, seconds=campaign.seconds
    )
    measure(campaign, repeats, out, with_overheads=is_whole or options.quick)
    print((out / "peers.md").read_text())


def measure(campaign: Campaign, repeats: int, out: Path, *, with_overheads: bool) -> None:
    """Prepare once, then all rounds."""
    campaign.prepare()
    if ARRAYS[0] in campaign.data:
        campaign.save_states()
    for _ in range(repeats):
        campaign.measure_rates()
        campaign.measure_resumes()
        if with_overheads:
            campaign.measure_overheads()
        write_results(campaign.results, write_report, out, "peers", HELD_BY)


def _names(text: str | None) -> list[str] | None:
    return text.split(",") if text else None


if __name__ == "__main__":
    main()
