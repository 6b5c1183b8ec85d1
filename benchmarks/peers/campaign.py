"""What the benchmarks of peers and of remote shards share: options, runs, and what is written."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.peers.catalogue import ALL, PEERS
from benchmarks.peers.environment import Installed, describe_run, install
from benchmarks.peers.job import Job
from benchmarks.peers.processes import ROOT, Outcome, run_fresh

PREPARE_S = 600.0
RESULTS = ROOT / "benchmarks" / "results"


def parser_of(doc: str | None, *, repeats: int, seconds: float) -> argparse.ArgumentParser:
    """The options of both benchmarks."""
    parser = argparse.ArgumentParser(
        description=doc, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="tiny data, one round, and no peers unless named")
    add("--only", metavar="A,B", help=f"data sets: {','.join(ALL)}")
    add("--peers", metavar="A,B", help="these besides webdataset and ours; '': none")
    add("--repeats", type=int, help=f"rounds ({repeats})")
    add("--seconds", type=float, help=f"counted in each run ({seconds})")
    add("--timeout", type=float, default=500, help="seconds after which a run ends")
    add("--folder", type=Path, default=Path.home() / ".cache" / "lightning_shards_benchmarks",
        help="for environments and data")  # fmt: skip
    add("--out", type=Path, help="for the results, as JSON and as Markdown")
    return parser


def listed(
    parser: argparse.ArgumentParser, text: str | None, known: Iterable[str], *, quick: bool = False
) -> list[str]:
    """The names in a text, which stand in the order of those that are known; all for none."""
    known = list(known)
    if text is None:
        return [] if quick else known
    names = set(filter(None, text.split(",")))
    if names - set(known):
        parser.error(f"known are {', '.join(known)}, not {', '.join(sorted(names - set(known)))}")
    return [name for name in known if name in names]


@dataclass
class Campaign:
    """Runs jobs in fresh processes, and notes one value a round; None for a run that failed.

    Attributes:
        name: of the package of `benchmarks`, and of the files with the results.
        report: the results as Markdown.
        options: as `parser_of` reads them.
        peers: who takes part, webdataset and ours left out.
        variables: of the environment of all runs.
        results: what is written.
        failed: the runs that failed.
    """

    name: str
    report: Callable[[Mapping[str, Any]], str]
    options: argparse.Namespace
    peers: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    failed: list[str] = field(default_factory=list[str])
    _installed: dict[str, Installed] = field(default_factory=dict[str, Installed])
    _begun: float = field(default_factory=perf_counter)

    def install(self, **settings: object) -> None:
        """Install the peers; those that cannot be are left out."""
        names = [name for name in PEERS if name in {*self.peers, "webdataset", "ours"}]
        folder = self.options.folder.resolve() / "environments"
        self._installed = {name: install(folder, PEERS[name].package) for name in names}
        self.peers = [name for name in names if not self._installed[name].error]
        self.results |= describe_run(f"benchmarks.{self.name}", self._installed, **settings)

    def run(self, job: Job, peer: str = "ours", timeout_s: float | None = None) -> Outcome:
        """Do a job in a fresh process with the environment of a peer."""
        command = [self._installed[peer].python, "-m", "benchmarks.peers.child"]
        outcome = run_fresh(command, job, timeout_s or self.options.timeout, self.variables)
        action = job.action.partition(":")[2]
        name = f"{action} {job.data.name} {job.loader or job.peer}, {job.workers}, {job.position}"
        if outcome.error:
            self.failed.append(name)
        shown = outcome.error or {
            key: round(value, 1) for key, value in outcome.result.items() if value
        }
        elapsed = perf_counter() - self._begun
        print(f"{elapsed:6.0f} s  {name}: {shown}", file=sys.stderr, flush=True)
        return outcome

    def make(self, job: Job, peer: str = "ours") -> dict[str, Any]:
        """The result of a job that everything else needs.

        Raises:
            RuntimeError: it failed.
        """
        outcome = self.run(job, peer, PREPARE_S)
        if outcome.error:
            raise RuntimeError(f"{job.action} of {job.data.name}: {outcome.error}")
        return outcome.result

    def note(self, row: dict[str, Any], keys: Iterable[str], outcome: Outcome) -> None:
        """Add the values of a round to a row."""
        for key in keys:
            row.setdefault(key, []).append(outcome.result.get(key))
        row["error"] = row.get("error") or outcome.error

    def write(self) -> None:
        """Write the results as JSON and as Markdown: a whole run's to where they are kept."""
        options = vars(self.options)
        chosen = ("quick", "only", "links", "peers")
        is_whole = all(options.get(name) in (None, False) for name in chosen)
        out = self.options.out or (RESULTS if is_whole else self.options.folder / "results")
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{self.name}.json").write_text(json.dumps(self.results, indent=1) + "\n")
        (out / f"{self.name}.md").write_text(self.report(self.results))

    def finish(self) -> None:
        """Print the page, and exit with an error if a run failed."""
        print(self.report(self.results))
        if self.failed:
            sys.exit(f"these runs failed, as was said above: {'; '.join(self.failed)}")
