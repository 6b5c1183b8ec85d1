"""Virtual environments: each peer has one on top of that of the interpreter that measures.

The peers' requirements contradict each other. What a peer needs differently lies in its own folder
and hides what the first environment has.
"""

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.peers.processes import ROOT

INSTALL_S = 900
_VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
_SHOWN = ("torch", "lightning", "webdataset", "numpy", "simplejpeg", "zlib-ng",
          "opencv-python-headless", "pillow")  # fmt: skip


@dataclass(frozen=True)
class Installed:
    """What became of a peer.

    Attributes:
        python: its interpreter.
        version: of its package, empty for what comes with ours.
        error: why there is none, in pip's words.
    """

    python: str
    version: str = ""
    error: str = ""


def install(folder: Path, package: str) -> Installed:
    """An interpreter that has a package besides all that this one has; this one for none."""
    if not package:
        return Installed(sys.executable)
    home = folder / package
    python = str(home / "bin" / "python")
    if not (home / "installed").exists():
        venv.create(home, with_pip=True, symlinks=True)
        site = next(home.glob("lib/python*/site-packages"))
        # addsitedir, and not a path alone: an editable package is there by a .pth file itself
        below = sysconfig.get_path("purelib")
        (site / "base.pth").write_text(f"import site; site.addsitedir({below!r})\n")
        print(f"installing {package}", file=sys.stderr, flush=True)
        command = [python, "-m", "pip", "install", "-q", "-c", f"{ROOT}/constraints.txt", package]
        pip = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)  # noqa: PLW1510, S603
        if pip.returncode:
            return Installed(python, error=" ".join(pip.stderr.split())[-500:])
        (home / "installed").touch()
    told = subprocess.run([python, "-c", _VERSION, package], stdout=subprocess.PIPE, check=True)  # noqa: S603
    return Installed(python, told.stdout.decode().strip())


def describe_run(
    module: str, installed: Mapping[str, Installed], **settings: object
) -> dict[str, Any]:
    """The machine, the command of a module with these settings, and what became of the peers."""
    command = shlex.join(["python", "-m", module, *sys.argv[1:]])
    versions = {each.name.lower(): each.version for each in distributions()}
    return {
        "machine": {
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "cores": len(os.sched_getaffinity(0)),
            "cpu": _line_of("/proc/cpuinfo", "model name"),
            "ram_gib": round(int(_line_of("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
            "load_average_at_start": [round(load, 2) for load in os.getloadavg()],
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "versions": {name: versions.get(name, "none") for name in _SHOWN},
        },
        "settings": {"command": command, **settings},
        "peers": {name: asdict(peer) for name, peer in installed.items()},
    }


def machine_and_command(results: Mapping[str, Any]) -> str:
    """What was measured on, and how: machine, rounds, versions, command."""
    machine, settings = results["machine"], results["settings"]
    peers = {name: peer["version"] for name, peer in results["peers"].items() if peer["version"]}
    versions = [f"{name} {version}" for name, version in (machine["versions"] | peers).items()]
    load = ", ".join(map(str, machine["load_average_at_start"]))
    lines = [
        (
            f"{machine['date']}, {machine['cores']} cores of {machine['cpu']}, "
            f"{machine['ram_gib']} GiB, {machine['system']}, Python {machine['python']}; load "
            f"average before the first run: {load}. {settings['repeats']} rounds. "
            f"{'; '.join(versions)}.\n\nCommand: `{settings['command']}`"
        )
    ]
    failed = {name: peer["error"] for name, peer in results["peers"].items() if peer["error"]}
    lines += [f"\nNot installed: {name}: {error}" for name, error in failed.items()]
    return "\n".join(lines)


def _line_of(path: str, name: str) -> str:
    lines = (line.partition(":") for line in Path(path).read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "unknown")
