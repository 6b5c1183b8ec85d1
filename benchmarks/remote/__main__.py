"""Training from remote shards, measured: `python -m benchmarks.remote`, from the root.

nginx has to be installed. The first time, MosaicML Streaming and LitData are installed and the data
is made, as by `python -m benchmarks.peers`, into the same folder. `--quick` only checks that all of
it works, on tiny data: its figures mean nothing. `--links 200 --peers ''` measures ours and
webdataset behind the faster link alone. The result of the last whole run is kept in
`benchmarks/results`; runs with options write beside the data.
"""

from dataclasses import replace

from benchmarks.peers.campaign import Campaign, listed, parser_of
from benchmarks.peers.catalogue import ALL, PEERS
from benchmarks.peers.job import BATCH, Data, Job
from benchmarks.remote.job import (
    BUCKET,
    FAST,
    LINKS,
    LITDATA,
    LONG,
    MOSAIC,
    OURS,
    SLOW,
    WEBDATASET,
    WEBDATASET_LONG,
    RemoteJob,
)
from benchmarks.remote.report import write_report
from benchmarks.remote.server import Rig, served

SIZES = {
    FAST: {"IMG": 8192, "SMALL": 800_000, "TOK": 160_000},
    SLOW: {"IMG": 2048, "SMALL": 100_000, "TOK": 20_000},
}
QUICK_SIZES = {
    FAST: {"IMG": 512, "SMALL": 40_000, "TOK": 16_000},
    SLOW: {"IMG": 512, "SMALL": 20_000, "TOK": 4_000},
}
"""Of images at least two first batches: each of two workers of webdataset makes one."""
LINK_NAMES = {link.partition(" ")[0]: link for link in LINKS}
SHARDS, SECONDS, REPEATS = 32, 12.0, 5
FIRST_BATCH = 256
LOADERS = {OURS: "ours", WEBDATASET: "webdataset", LONG: "ours", WEBDATASET_LONG: "webdataset"}
OTHERS = {LITDATA: "litdata", MOSAIC: "mosaic"}
"""Loaders, and their names in the catalogue of peers."""
EPOCH_KEYS = ("samples", "samples_per_s", "steady_per_s", "first_ms", "bytes", "requests",
              "connections", "peak_pss_mb")  # fmt: skip

Jobs = dict[tuple[str, str], RemoteJob]
"""By data set and link."""


def main() -> None:
    """Run all of it; what was measured is written after each round."""
    parser = parser_of(__doc__, repeats=REPEATS, seconds=SECONDS)
    parser.add_argument("--links", metavar="A,B", help="MB/s: 200,20")
    options = parser.parse_args()
    quick: bool = options.quick
    names, links = listed(parser, options.only, ALL), listed(parser, options.links, LINK_NAMES)
    peers = listed(parser, options.peers, OTHERS.values(), quick=quick)
    options.repeats = options.repeats or (1 if quick else REPEATS)
    seconds = options.seconds or SECONDS
    root = (options.folder / "served").resolve()
    (root / BUCKET).mkdir(parents=True, exist_ok=True)
    with served(root, options.folder.resolve() / "nginx") as rig:
        campaign = Campaign("remote", write_report, options, peers, _environment(rig))
        campaign.install(repeats=options.repeats, seconds=seconds, batch=BATCH)
        sizes = QUICK_SIZES if quick else SIZES
        jobs = {
            (name, link): RemoteJob(
                "", Data(name, sizes[link][name], SHARDS), str(root / BUCKET), seconds=seconds,
                link=link, shaped=rig.shaped, control=rig.control,
            )
            for name in names
            for link in (LINK_NAMES[text] for text in links)
        }  # fmt: skip
        prepare(campaign, jobs)
        for number in range(options.repeats):
            measure(campaign, jobs, number)
            campaign.write()
        campaign.finish()


def prepare(campaign: Campaign, jobs: Jobs) -> None:
    """Make the data sets, their tables, and what the others make of them."""
    campaign.results |= {"data": {name: {} for name, _ in jobs}, "epochs": {}}
    for (name, link), job in jobs.items():
        local = Job("benchmarks.peers.datasets:make_data", job.data, job.folder)
        facts = {"samples": job.data.samples, **campaign.make(local)}
        facts |= campaign.make(replace(job, action="benchmarks.remote.actions:publish"))
        campaign.results["data"][name][link] = facts
        jobs[name, link] = replace(job, sample_bytes=facts["bytes_per_sample"])
        for peer in set(campaign.peers) & set(OTHERS.values()):
            action = "benchmarks.peers.actions:prepare"
            campaign.make(replace(local, action=action, peer=PEERS[peer].module), peer)


def measure(campaign: Campaign, jobs: Jobs, number: int) -> None:
    """One round, in an order that turns round with each."""
    loaders = LOADERS | {name: peer for name, peer in OTHERS.items() if peer in campaign.peers}
    turned = list(loaders.items())[:: -1 if number % 2 else 1]
    firsts = campaign.results.setdefault("firsts", {})
    for (name, link), job in jobs.items():
        rows = campaign.results["epochs"].setdefault(name, {})
        for loader, peer in turned:
            action = "benchmarks.remote.actions:epoch"
            asked = replace(job, action=action, loader=loader, peer=PEERS[peer].module)
            campaign.note(rows.setdefault(f"{loader}, {link}", {}), EPOCH_KEYS,
                          campaign.run(asked, peer))  # fmt: skip
        if name == "IMG":
            big = replace(job, action="benchmarks.remote.actions:first", batch=FIRST_BATCH)
            for loader, share in ((OURS, 0), (OURS, 95), (WEBDATASET, 0)):
                position = share * job.data.samples // (100 * FIRST_BATCH)
                outcome = campaign.run(replace(big, loader=loader, position=position))
                values = firsts.setdefault(f"{loader}, {link}, {share} %", [])
                values.append(outcome.result.get("first_ms"))
        if (name, link) == ("TOK", FAST):
            outcome = campaign.run(replace(job, action="benchmarks.remote.actions:caches"))
            table = campaign.results.setdefault("caches", {})
            for key, value in outcome.result.items():
                table.setdefault(key, []).append(value)


def _environment(rig: Rig) -> dict[str, str]:
    """By which boto3 and obstore find our S3; it takes any key."""
    return {
        "S3_ENDPOINT_URL": f"http://127.0.0.1:{rig.shaped}",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


if __name__ == "__main__":
    main()
