"""Training from remote shards, measured: `python -m benchmarks.remote`, from the root.

nginx has to be installed. The first time, MosaicML Streaming, LitData and obstore are installed and
the data is made, as by `python -m benchmarks.peers`, into the same folder. `--quick` only checks
that all of it works, on tiny data and, unless `--peers` names them, without the others: its
figures mean nothing. `--links 200 --peers ''` measures ours and webdataset behind the faster link
alone. The result of the last whole run is kept in `benchmarks/results`; runs with options write
beside the data.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.peers.catalogue import ALL, PEERS, Peer
from benchmarks.peers.environment import ROOT, install_base, install_peer
from benchmarks.peers.job import BATCH, Data
from benchmarks.peers.results import describe_run, write_results
from benchmarks.remote.campaign import OTHERS, Campaign
from benchmarks.remote.job import BUCKET, FAST, SLOW
from benchmarks.remote.report import write_report
from benchmarks.remote.server import served

SIZES = {
    FAST: {"IMG": 8192, "SMALL": 800_000, "TOK": 160_000},
    SLOW: {"IMG": 2048, "SMALL": 100_000, "TOK": 20_000},
}
QUICK_SIZES = {
    FAST: {"IMG": 512, "SMALL": 40_000, "TOK": 16_000},
    SLOW: {"IMG": 512, "SMALL": 20_000, "TOK": 4_000},
}
"""Of images at least two first batches: each of two workers of webdataset makes one."""
LINK_NAMES = {link.partition(" ")[0]: link for link in (FAST, SLOW)}
SHARDS = 32
SECONDS = 12.0
KEPT = ROOT / "benchmarks" / "results"
NAME = "remote"
HELD_BY = KEPT / "remote_held_by.json"
OBSTORE = Peer("obstore", "", (), ("obstore",))
"""What our own environment lacks for S3."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options; those left out depend on `--quick`."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="tiny data, no others, one round")
    parser.add_argument("--only", metavar="A,B", help=f"data sets: {','.join(ALL)}")
    parser.add_argument("--links", metavar="A,B", help="MB/s: 200,20; 20 in every second round")
    parser.add_argument("--peers", metavar="A,B", help="these beside webdataset and ours; '': none")
    parser.add_argument("--repeats", type=int, help="rounds (5)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of an epoch ({SECONDS})")
    parser.add_argument("--timeout", type=float, default=500, help="seconds after which a run ends")
    parser.add_argument("--folder", type=Path, help="for environments and data")
    parser.add_argument("--out", type=Path, help="for remote.json and remote.md")
    options = parser.parse_args(arguments)
    for name, known in (("only", ALL), ("links", LINK_NAMES), ("peers", OTHERS.values())):
        unknown = set(_listed(getattr(options, name))) - set(known)
        if unknown:
            parser.error(f"--{name} knows {', '.join(known)}, not {', '.join(sorted(unknown))}")
    return options


def data_sets(options: argparse.Namespace) -> dict[str, dict[str, Data]]:
    """By name, what is read behind each link."""
    sizes = QUICK_SIZES if options.quick else SIZES
    links = [LINK_NAMES[link] for link in _listed(options.links) or LINK_NAMES]
    return {
        name: {link: Data(name, sizes[link][name], SHARDS) for link in links}
        for name in _listed(options.only) or ALL
    }


def others(options: argparse.Namespace) -> dict[str, Peer]:
    """The loaders of other packages, by their names in tables."""
    named = [] if options.quick else list(OTHERS.values())
    names = named if options.peers is None else _listed(options.peers)
    peers = {peer.name: peer for peer in PEERS}
    return {loader: peers[name] for loader, name in OTHERS.items() if name in names}


def main() -> None:
    """Run all of it; what was measured is written after each round."""
    options = parse()
    folder = options.folder or Path.home() / ".cache" / "lightning_shards_benchmarks"
    is_whole = not (options.quick or options.only or options.links or options.peers is not None)
    out = options.out or (KEPT if is_whole else folder / "results")
    environments, repeats = folder / "environments", options.repeats or (1 if options.quick else 5)
    base = install_base(environments)
    installed = {
        loader: install_peer(environments, base, peer) for loader, peer in others(options).items()
    }
    with_obstore = None if options.quick else install_peer(environments, base, OBSTORE)
    python = with_obstore.python if with_obstore and not with_obstore.error else str(base)
    root = (folder / "served").resolve()
    (root / BUCKET).mkdir(parents=True, exist_ok=True)
    with served(root, folder.resolve() / "nginx") as rig:
        campaign = Campaign(
            python, installed, str(root / BUCKET), data_sets(options), options.seconds,
            options.timeout, rig,
        )  # fmt: skip
        campaign.results |= describe_run(
            base, "benchmarks.remote", installed, repeats=repeats, seconds=options.seconds,
            batch=BATCH,
        )  # fmt: skip
        campaign.prepare()
        for number in range(repeats):
            campaign.measure(number)
            write_results(campaign.results, write_report, out, NAME, HELD_BY)
    print((out / f"{NAME}.md").read_text())
    if campaign.failed:
        sys.exit(f"these runs failed, as was said above: {', '.join(campaign.failed)}")


def _listed(names: str | None) -> list[str]:
    return names.split(",") if names else []


if __name__ == "__main__":
    main()
