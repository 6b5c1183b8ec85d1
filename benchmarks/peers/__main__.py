"""Install the peers, make the data, measure, print: `python -m benchmarks.peers`, from the root.

It needs what `pip install -e '.[checksum,image]'` brings. The first time it also installs the peers
and makes the data. `--quick` only checks that all of it works, on tiny data: its figures mean
nothing. The result of the last whole run is kept in `benchmarks/results`; runs with `--quick`,
`--only` or `--peers` write beside the data.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from benchmarks.peers.campaign import Campaign, listed, parser_of
from benchmarks.peers.catalogue import ALL, ARRAYS, PEERS, Peer
from benchmarks.peers.job import Data, Job
from benchmarks.peers.report import FLOORS, write_report

SIZES = {"IMG": 4096, "SMALL": 200_000, "TOK": 40_000}
QUICK_SIZES = {"IMG": 1024, "SMALL": 20_000, "TOK": 4_000}
SHARDS, QUICK_SHARDS = 16, 4
SECONDS, QUICK_SECONDS = 1.0, 0.2
REPEATS = 3
POSITIONS = {"0": 0.0, "50": 0.5, "95": 0.95}
RATE_KEYS = ("samples_per_s", "first_ms", "imported_mb", "peak_pss_mb")


def main() -> None:
    """Run all of it; what was measured is written after each round."""
    parser = parser_of(__doc__, repeats=REPEATS, seconds=SECONDS)
    options = parser.parse_args()
    quick: bool = options.quick
    names = listed(parser, options.only, ALL)
    peers = listed(parser, options.peers, [*PEERS], quick=quick)
    options.repeats = options.repeats or (1 if quick else REPEATS)
    options.seconds = options.seconds or (QUICK_SECONDS if quick else SECONDS)
    sizes, shards = (QUICK_SIZES, QUICK_SHARDS) if quick else (SIZES, SHARDS)
    campaign = Campaign("peers", write_report, options, peers)
    campaign.install(repeats=options.repeats, seconds=options.seconds)
    jobs = {
        name: Job("", Data(name, sizes[name], shards), str(options.folder.resolve() / "data"),
                  seconds=options.seconds)
        for name in names
    }  # fmt: skip
    prepare(campaign, jobs)
    for _ in range(options.repeats):
        measure(campaign, jobs)
        campaign.write()
    campaign.finish()


def prepare(campaign: Campaign, jobs: Mapping[str, Job]) -> None:
    """Make the data sets, what each peer makes of them, and the states that it resumes from."""
    campaign.results |= {"data": {}, "rates": {name: {} for name in jobs}}
    for name, job in jobs.items():
        made = campaign.make(replace(job, action="benchmarks.peers.datasets:make_data"))
        campaign.results["data"][name] = {"samples": job.data.samples, **made}
        for peer in campaign.peers:
            if any(name in row.data for row in PEERS[peer].rows):
                campaign.run(_job(job, "prepare", PEERS[peer]), peer, timeout_s=600)
    for peer, job in _resumed(campaign, jobs):
        for at in _positions(job)[1:] if PEERS[peer].package else ():
            campaign.run(replace(job, action="benchmarks.peers.actions:state", position=at), peer)


def measure(campaign: Campaign, jobs: Mapping[str, Job]) -> None:
    """One round over all data sets and rows, and over the loaders that are resumed."""
    for name, job in jobs.items():
        rows = campaign.results["rates"][name]
        floors = campaign.run(replace(job, action="benchmarks.peers.actions:floors"))
        for row in FLOORS:
            of_row = {"samples_per_s": floors.result.get(row)}
            campaign.note(rows.setdefault(row, {}), RATE_KEYS, replace(floors, result=of_row))
        for peer in campaign.peers:
            for row in [row for row in PEERS[peer].rows if name in row.data]:
                asked = _job(job, "rate", PEERS[peer], row.loader)
                outcome = campaign.run(replace(asked, workers=row.workers), peer)
                campaign.note(rows.setdefault(row.name, {}), RATE_KEYS, outcome)
    table = campaign.results.setdefault("resume", {})
    for peer, job in _resumed(campaign, jobs):
        row = table.setdefault(job.loader, {name: [] for name in POSITIONS})
        for values, at in zip(row.values(), _positions(job), strict=True):
            values.append(campaign.run(replace(job, position=at), peer).result.get("first_ms"))


def _resumed(campaign: Campaign, jobs: Mapping[str, Job]) -> Iterator[tuple[str, Job]]:
    """The peers and jobs of first batches, of SMALL alone."""
    if ARRAYS[0] in jobs:
        for peer in campaign.peers:
            for loader in PEERS[peer].resumed:
                yield peer, _job(jobs[ARRAYS[0]], "first", PEERS[peer], loader)


def _positions(job: Job) -> list[int]:
    return [int(share * job.data.steps) for share in POSITIONS.values()]


def _job(job: Job, action: str, peer: Peer, loader: str = "") -> Job:
    action = f"benchmarks.peers.actions:{action}"
    return replace(job, action=action, peer=peer.module, loader=loader)


if __name__ == "__main__":
    main()
