"""What the results of every campaign hold beside the figures, and where they are written."""

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import Installed, describe_machine
from benchmarks.peers.targets import Results


def describe_run(
    base: Path, module: str, installed: Mapping[str, Installed], **settings: object
) -> dict[str, Any]:
    """The machine, the command of a module with these settings, and what became of the peers."""
    command = shlex.join(["python", "-m", module, *sys.argv[1:]])
    return {
        "machine": describe_machine(base),
        "settings": {"command": command, **settings},
        "peers": {
            name: {"version": each.version, "error": each.error} for name, each in installed.items()
        },
    }


def machine_and_command(results: Results, rounds: str = "rounds") -> str:
    """What was measured on, and how: machine, rounds, versions, command."""
    machine, settings = results["machine"], results["settings"]
    versions = [f"{name} {version}" for name, version in machine["versions"].items()]
    versions += [
        f"{name} {peer['version']}" for name, peer in results["peers"].items() if peer["version"]
    ]
    load = ", ".join(map(str, machine["load_average_at_start"]))
    return (
        f"{machine['date']}, {machine['cores']} cores of {machine['cpu']}, "
        f"{machine['ram_gib']} GiB, {machine['system']}, Python {machine['python']}; load average "
        f"before the first run: {load}. {settings['repeats']} {rounds}. {'; '.join(versions)}.\n\n"
        f"Command: `{settings['command']}`"
    )


def not_installed(results: Results) -> str:
    """The peers that could not be installed, and why; empty if all are."""
    lines = [
        f"- {name}: {peer['error']}" for name, peer in results["peers"].items() if peer["error"]
    ]
    return "## Not installed\n\n" + "\n".join(lines) if lines else ""


def write_results(
    results: Results,
    write_report: Callable[[Results, Mapping[str, str]], str],
    out: Path,
    name: str,
    held_by: Path,
) -> None:
    """Write the results as JSON and as Markdown; a file says which goals are held by what."""
    out.mkdir(parents=True, exist_ok=True)
    known = json.loads(held_by.read_text()) if held_by.exists() else {}
    (out / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / f"{name}.md").write_text(write_report(results, known))
