"""Memory of all processes of a run, from /proc (Linux)."""

import threading
from contextlib import suppress
from pathlib import Path

PSS_INTERVAL_S = 1.0
"""To look takes six milliseconds a process: more often, it would slow down what is measured."""


class MemoryWatch:
    """The most memory that a child and all that it started had at one time."""

    def __init__(self, session: int) -> None:
        self._session, self._peak_kb = session, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """In MB."""
        self._ended.set()
        self._thread.join()
        return self._peak_kb / 1000

    def _watch(self) -> None:
        while not self._ended.wait(PSS_INTERVAL_S):
            total = sum(pss_kb(pid) for pid in session_members(self._session))
            self._peak_kb = max(self._peak_kb, total)


def session_members(session: int) -> list[int]:
    """The processes that a child started, also those whose parent is gone."""
    members: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    members.append(int(folder.name))
    return members


def pss_kb(pid: int) -> int:
    """Memory of a process, a page that several share counted in parts; 0 if it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
