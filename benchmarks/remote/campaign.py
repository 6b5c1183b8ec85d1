"""All runs of a benchmark of remote shards, round by round."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from benchmarks.peers.campaign import PREPARE_S
from benchmarks.peers.catalogue import PEERS, Peer
from benchmarks.peers.environment import Installed
from benchmarks.peers.job import Data, Job
from benchmarks.peers.processes import Outcome, run_job
from benchmarks.remote.job import (
    DEFAULT,
    FAST,
    LITDATA,
    LOCAL,
    LONG,
    MOSAIC,
    OURS,
    SLOW,
    WEBDATASET,
    WEBDATASET_LONG,
    RemoteJob,
)
from benchmarks.remote.server import Rig, ask, cpu_s

CHILD = "benchmarks.remote.child"
OTHERS = {LITDATA: "litdata", MOSAIC: "mosaic"}
"""Loaders with an environment of their own, and their names in the catalogue of peers."""

EPOCH_KEYS = ("samples", "samples_per_s", "steady_per_s", "first_ms", "bytes", "requests",
              "connections")  # fmt: skip
_SLOW_EVERY = 2
_CACHES, _FIRSTS = "TOK", "IMG"


@dataclass
class Campaign:
    """Runs jobs and collects one value a round, None for a run that failed.

    Attributes:
        python: The interpreter of this package.
        installed: Of each other loader.
        folder: Of the data sets.
        data: By data set, what is read behind each link.
        seconds: After which an epoch is not read on.
        timeout_s: After which a run is ended.
        rig: The server and the link to it.
        results: What is written at the end.
        failed: The runs that failed.
    """

    python: str
    installed: Mapping[str, Installed]
    folder: str
    data: Mapping[str, Mapping[str, Data]]
    seconds: float
    timeout_s: float
    rig: Rig
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    failed: list[str] = field(default_factory=list[str])
    _begun: float = field(default_factory=perf_counter)

    def prepare(self) -> None:
        """Make the data sets, their tables, and what the others make of them."""
        facts: dict[str, dict[str, Any]] = {name: {} for name in self.data}
        self.results["data"] = facts
        for name, link, data in self._sets():
            made = self._done(self.python, Job("data", data, self.folder), "benchmarks.peers.child")
            facts[name][link] = {"samples": data.samples, **made}
            facts[name][link] |= self._done(self.python, self._job("published", name, data))
            for loader, peer in self._others().items():
                job = Job("prepare", data, self.folder, peer=peer.module)
                self._done(self.installed[loader].python, job, "benchmarks.peers.child")

    def measure(self, number: int) -> None:
        """One round; behind the slower link every second time only."""
        for name in self.data:
            self._measure_epochs(name, number)
        if _FIRSTS in self.data:
            job = self._job("firsts", _FIRSTS, loaders=[OURS, WEBDATASET])
            self._collect("firsts", self._run(self.python, job))
        if FAST not in next(iter(self.data.values())):
            return
        if _CACHES in self.data:
            self._collect("caches", self._run(self.python, self._job("caches", _CACHES)))
            for loader in self._others() if number == 0 else ():
                job = self._job("half_cached", _CACHES, loaders=[loader])
                outcome = self._run(self.installed[loader].python, job)
                self.results.setdefault("half_cached", {})[loader] = outcome.result
        self._measure_cpu()

    def _measure_epochs(self, name: str, number: int) -> None:
        own = [OURS, LOCAL, WEBDATASET, LONG, WEBDATASET_LONG]
        own += [] if name == "IMG" else [DEFAULT]
        turned = own[:: -1 if number % 2 else 1]
        links = self.data[name]
        if number % _SLOW_EVERY and FAST in links:
            links = {link: data for link, data in links.items() if link != SLOW}
        runs = [(self.python, turned, links)]
        # One link a process: MosaicML Streaming keeps facts of the data set that was read before
        runs += [
            (self.installed[other].python, [other], {link: data})
            for other in self._others()
            for link, data in links.items()
        ]
        for python, loaders, read in runs:
            job = self._job("epochs", name, links=read, loaders=loaders)
            self._record_all(name, loaders, read, self._run(python, job))
        left = self.data[name].keys() - links.keys()
        self._record_all(name, [*own, *self._others()], left, Outcome({}, 0))

    def _record_all(
        self, name: str, loaders: Iterable[str], links: Iterable[str], outcome: Outcome
    ) -> None:
        for loader in loaders:
            for link in links:
                if loader != LOCAL or link == FAST:
                    self._record(name, f"{loader}, {link}", outcome)

    def _measure_cpu(self) -> None:
        name = next(iter(self.data)) if _CACHES not in self.data else _CACHES
        before, nginx = ask(self.rig.control), cpu_s(self.rig.nginx)
        self._collect("cpu", self._run(self.python, self._job("cpu", name)))
        after = ask(self.rig.control)
        moved = (after["bytes"] - before["bytes"]) / 1e9
        rig = {"proxy": after["cpu_s"] - before["cpu_s"], "nginx": cpu_s(self.rig.nginx) - nginx}
        for part, seconds in rig.items():
            row = self.results.setdefault("rig", {}).setdefault(part, [])
            row.append(seconds / moved if moved else None)

    def _record(self, data: str, name: str, outcome: Outcome) -> None:
        empty = {"error": "", **{key: [] for key in EPOCH_KEYS}}
        rows = self.results.setdefault("epochs", {}).setdefault(data, {})
        row = rows.setdefault(name, empty)
        for key in EPOCH_KEYS:
            row[key].append(outcome.result.get(name, {}).get(key))
        row["error"] = row["error"] or outcome.error

    def _collect(self, part: str, outcome: Outcome) -> None:
        table = self.results.setdefault(part, {})
        for key, value in outcome.result.items():
            table.setdefault(key, []).append(value)

    def _sets(self) -> list[tuple[str, str, Data]]:
        return [
            (name, link, data) for name, links in self.data.items() for link, data in links.items()
        ]

    def _others(self) -> dict[str, Peer]:
        known = {peer.name: peer for peer in PEERS}
        return {
            loader: known[OTHERS[loader]]
            for loader, installed in self.installed.items()
            if not installed.error
        }

    def _job(
        self, action: str, name: str, data: Data | None = None, *,
        links: Mapping[str, Data] | None = None, loaders: list[str] | None = None,
    ) -> RemoteJob:  # fmt: skip
        facts = next(iter(self.results["data"][name].values()), {})
        return RemoteJob(
            action, data or next(iter(self.data[name].values())), self.folder,
            seconds=self.seconds, links=dict(links or self.data[name]), loaders=loaders or [],
            shaped=self.rig.shaped, direct=self.rig.direct, control=self.rig.control,
            sample_bytes=facts.get("bytes_per_sample", 0),
        )  # fmt: skip

    def _done(self, python: str, job: Job, module: str = CHILD) -> dict[str, Any]:
        """The result of what everything else needs."""
        outcome = self._run(python, job, PREPARE_S, module)
        if outcome.error:
            raise RuntimeError(f"{job.action} of {job.data.name}: {outcome.error}")
        return outcome.result

    def _run(
        self, python: str, job: Job, timeout_s: float | None = None, module: str = CHILD
    ) -> Outcome:
        outcome = run_job(python, job, timeout_s or self.timeout_s, module, _environment(self.rig))
        if outcome.error:
            self.failed.append(f"{job.action} of {job.data.name}")
        shown = outcome.error or _shown(outcome.result)
        elapsed = perf_counter() - self._begun
        print(f"{elapsed:6.0f} s  {job.action} {job.data.name} {job.peer}: {shown}",
              file=sys.stderr, flush=True)  # fmt: skip
        return outcome


def _environment(rig: Rig) -> dict[str, str]:
    """By which boto3 and obstore find our S3; it takes any key."""
    return {
        "S3_ENDPOINT_URL": f"http://127.0.0.1:{rig.shaped}",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def _shown(result: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: round(value.get("samples_per_s", 0)) if isinstance(value, dict) else round(value, 2)
        for key, value in result.items()
    }
