"""All runs of a benchmark, round by round."""

import sys
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from benchmarks.peers.catalogue import ARRAYS, Peer, Row
from benchmarks.peers.environment import Installed
from benchmarks.peers.job import Data, Job
from benchmarks.peers.processes import Outcome, run_job

PREPARE_S = 600.0
_NOT_PREPARED = "not prepared"
POSITIONS = {"0": 0.0, "50": 0.5, "95": 0.95}
RATE_KEYS = ("samples_per_s", "first_ms", "imported_mb")
FLOORS = (
    "floor: transform, 2 threads",
    "floor: transform, 2 processes",
    "floor: transform, inline",
    "floor: one sequential read",
)
OVERHEADS = ("imports", "epoch_ends", "monitor")


@dataclass
class Campaign:
    """Runs jobs and collects one value a round, None for a run that failed.

    Attributes:
        peers: who takes part.
        installed: where each of them is.
        base: the interpreter of this package.
        folder: of the data sets.
        data: the data sets.
        seconds: how long batches are counted in a run.
        timeout_s: after which a run is ended.
        results: what is written at the end.
    """

    peers: list[Peer]
    installed: dict[str, Installed]
    base: str
    folder: str
    data: dict[str, Data]
    seconds: float
    timeout_s: float
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    _begun: float = field(default_factory=perf_counter)

    def prepare(self) -> None:
        """Make the data sets, and what each peer makes of them; a peer that cannot is left out."""
        self.results |= {"data": {}, "rates": {name: {} for name in self.data}}
        for data in self.data.values():
            made = self._run(self.base, self._job("data", data), PREPARE_S)
            if made.error:
                raise RuntimeError(f"{data.name} could not be made: {made.error}")
            self.results["data"][data.name] = {"samples": data.samples, **made.result}
            for peer in self._present():
                if peer.converts and any(data.name in row.data for row in peer.rows):
                    job = replace(self._job("prepare", data), peer=peer.module)
                    error = self._run(self._python(peer), job, PREPARE_S).error
                    for row in peer.rows if error else ():
                        self._row(data, row.name)["error"] = f"{_NOT_PREPARED}: {error}"

    def measure_rates(self) -> None:
        """One round over all data sets and rows."""
        for data in self.data.values():
            outcome = self._run(self.base, self._job("floors", data))
            for name in FLOORS:
                rate = {"samples_per_s": outcome.result.get(name)}
                self._record(data, name, replace(outcome, result=rate, peak_pss_mb=None))
            for peer in self._present():
                for row in peer.rows:
                    if data.name in row.data:
                        self._record(data, row.name, self._measured(peer, row, data))

    def save_states(self) -> None:
        """What each peer needs to continue in the middle of an epoch of SMALL."""
        for peer, loader in self._resumed():
            for share in POSITIONS.values() if peer.saves_state else ():
                job = self._at(share, "state", peer, loader)
                if job.position:
                    self._run(self._python(peer), job, PREPARE_S)

    def measure_resumes(self) -> None:
        """One round over the loaders and positions."""
        table = self.results.setdefault("resume", {})
        for peer, loader in self._resumed():
            row = table.setdefault(loader, {name: [] for name in POSITIONS})
            for name, share in POSITIONS.items():
                outcome = self._run(self._python(peer), self._at(share, "first", peer, loader))
                row[name].append(outcome.result.get("first_ms"))

    def measure_overheads(self) -> None:
        """One round of what is measured of this package alone."""
        data = self.data.get("SMALL") or next(iter(self.data.values()))
        for part in OVERHEADS:
            job = replace(self._job(part, data), peer="shards", workers=0)
            outcome = self._run(self.base, job)
            table = self.results.setdefault(part, {})
            for name, value in outcome.result.items():
                table.setdefault(name, []).append(value)

    def _measured(self, peer: Peer, row: Row, data: Data) -> Outcome:
        if self._is_unprepared(data, row.name):
            return Outcome({}, 0.0, self._row(data, row.name)["error"])
        job = self._job("rate", data)
        job = replace(job, peer=peer.module, loader=row.loader, workers=row.workers)
        return self._run(self._python(peer), job)

    def _is_unprepared(self, data: Data, row: str) -> bool:
        known = self.results["rates"][data.name].get(row, {})
        return known.get("error", "").startswith(_NOT_PREPARED)

    def _record(self, data: Data, name: str, outcome: Outcome) -> None:
        row = self._row(data, name)
        for key in RATE_KEYS:
            row[key].append(outcome.result.get(key))
        row["peak_pss_mb"].append(None if outcome.error else outcome.peak_pss_mb)
        row["error"] = row["error"] or outcome.error

    def _row(self, data: Data, name: str) -> dict[str, Any]:
        empty = {"peak_pss_mb": [], "error": "", **{key: [] for key in RATE_KEYS}}
        return self.results["rates"][data.name].setdefault(name, empty)

    def _resumed(self) -> list[tuple[Peer, str]]:
        if ARRAYS[0] not in self.data:
            return []
        data = self.data[ARRAYS[0]]
        return [
            (peer, loader)
            for peer in self._present()
            for loader in peer.resumed
            if not self._is_unprepared(data, loader)
        ]

    def _at(self, share: float, action: str, peer: Peer, loader: str) -> Job:
        data = self.data[ARRAYS[0]]
        position = int(share * data.steps)
        job = self._job(action, data)
        return replace(job, peer=peer.module, loader=loader, position=position)

    def _job(self, action: str, data: Data) -> Job:
        return Job(action, data, self.folder, seconds=self.seconds)

    def _present(self) -> list[Peer]:
        return [peer for peer in self.peers if not self.installed[peer.name].error]

    def _python(self, peer: Peer) -> str:
        return self.installed[peer.name].python

    def _run(self, python: str, job: Job, timeout_s: float | None = None) -> Outcome:
        outcome = run_job(python, job, timeout_s or self.timeout_s)
        name = " ".join(filter(None, (job.action, job.data.name, job.peer, job.loader)))
        shown = outcome.error or {key: round(value, 1) for key, value in outcome.result.items()}
        elapsed = perf_counter() - self._begun
        print(f"{elapsed:6.0f} s  {name}, {job.workers}, at {job.position}: {shown}",
              file=sys.stderr, flush=True)  # fmt: skip
        return outcome
