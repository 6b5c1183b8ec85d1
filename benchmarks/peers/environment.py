"""Virtual environments: one for this package, and on top of it one for each peer.

The peers' requirements contradict each other. What a peer needs differently lies in its own folder
and hides what the first environment has.
"""

import json
import os
import platform
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.catalogue import BASE, Peer

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
INSTALL_S = 900
_VERSIONS = """
import json
from importlib.metadata import distributions
print(json.dumps({each.metadata["Name"].lower(): each.version for each in distributions()}))
"""
_SHOWN = ("torch", "lightning", "webdataset", "numpy", "simplejpeg", "zlib-ng",
          "opencv-python-headless",
          "pillow")  # fmt: skip


@dataclass(frozen=True)
class Installed:
    """What became of a peer.

    Attributes:
        python: its interpreter.
        version: of its first package, empty for what comes with ours.
        error: why there is none, in pip's words.
    """

    python: str
    version: str = ""
    error: str = ""


def install_base(folder: Path) -> Path:
    """The interpreter with torch, as constraints.txt pins it, and this checkout.

    Raises:
        RuntimeError: pip could not install it.
    """
    python = _new_environment(folder / "base")
    done = folder / "base" / "installed"
    if not done.exists():
        for wanted in (["torch"], ["-e", f"{ROOT}[checksum,image]"]):
            error = _pip(python, wanted)
            if error:
                raise RuntimeError(f"{' '.join(wanted)} cannot be installed: {error}")
        done.touch()
    return python


def install_peer(folder: Path, base: Path, peer: Peer) -> Installed:
    """Its environment over the first one."""
    if peer.name in BASE:
        return Installed(str(base))
    python = _new_environment(folder / peer.name)
    done = folder / peer.name / "installed"
    if not done.exists():
        site = next((folder / peer.name / "lib").glob("python*/site-packages"))
        below = next((folder / "base" / "lib").glob("python*/site-packages"))
        # addsitedir, and not a path alone: the checkout is installed by a .pth file itself
        (site / "base.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n")
        error = _pip(python, list(peer.packages))
        if error:
            return Installed(str(python), error=error)
        done.touch()
    name = peer.packages[0].partition("[")[0]
    return Installed(str(python), versions_of(python).get(name, "?"))


def versions_of(python: Path) -> dict[str, str]:
    """All distributions that an interpreter sees."""
    run = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=True)  # noqa: S603
    return dict(reversed(json.loads(run.stdout).items()))


def describe_machine(base: Path) -> dict[str, object]:
    """What the figures were measured on."""
    versions = versions_of(base)
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _line_of("/proc/cpuinfo", "model name"),
        "ram_gib": round(int(_line_of("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "load_average_at_start": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: versions.get(name, "?") for name in _SHOWN},
    }


def _new_environment(folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, symlinks=True)
    return python


def _pip(python: Path, wanted: list[str]) -> str:
    """Install; nothing, or the reason why it cannot be."""
    command = [python, "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS, *wanted]
    print(f"installing {' '.join(wanted)}", file=sys.stderr, flush=True)
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)  # noqa: PLW1510, S603
    except subprocess.TimeoutExpired:
        return f"pip took more than {INSTALL_S} s"
    lines = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
    return "" if run.returncode == 0 else "; ".join(lines)[:500] or run.stderr[-500:]


def _line_of(path: str, name: str) -> str:
    lines = (line.partition(":") for line in Path(path).read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "unknown")
