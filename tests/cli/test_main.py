"""The command without Lightning: its help, its version, and a name that it does not know."""

import sys
from pathlib import Path

import pytest

from lightning_shards import __main__ as command
from lightning_shards.__main__ import main

COMMANDS = ["fit", "validate", "test", "predict", "pack", "reshard", "index", "info", "show",
            "verify", "plan", "cache", "bench", "trace", "schema"]  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["lightning-shards", *options])
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else -1
    return 0


def test_help_shows_all_commands(monkeypatch, capsys):
    assert run(monkeypatch) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:2] == "  "]
    assert [row[0] for row in rows] == COMMANDS
    assert all(len(row) > 2 for row in rows)


def test_the_tools_that_are_shown_are_those_that_exist():
    folder = Path(command.__file__).parent / "tools"
    modules = {path.stem for path in folder.glob("*.py") if "def main(" in path.read_text()}
    assert set(COMMANDS[4:]) == modules


@pytest.mark.parametrize(
    ("name", "meant"),
    [("veryfy", "; did you mean 'verify'?"), ("fti", "; did you mean 'fit'?"), ("xyz", "")],
)
def test_an_unknown_command_names_the_nearest_and_all(name, meant, monkeypatch, capsys):
    assert run(monkeypatch, name) == 2
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == f"lightning-shards: error: there is no command {name!r}{meant}"
    assert shown[1].startswith(f"commands are {', '.join(COMMANDS)}; ")
