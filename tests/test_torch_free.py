"""The tools that need no torch, from files to checked shards.

CI also runs this file under other versions of Python, without torch and without tests/conftest.py.
"""

import hashlib
import json
from pathlib import Path

import pytest

from lightning_shards.tools import index, info, pack, reshard, verify

PACKED = "3c03678cf4b4435d5d62fa3384983a7ef26a052b259cfa11691cd5a3e2a92227"
"""SHA-256 of the packed shards: they are the same bytes under every version of Python."""


def run(capsys: pytest.CaptureFixture[str], main, *arguments: object) -> dict:
    main([*map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


def digest(folder: Path) -> str:
    """Of the names and bytes of all shards in a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.tar")):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


@pytest.fixture
def files(tmp_path):
    """Thirty texts in folders of three classes."""
    folder = tmp_path / "files"
    for number in range(30):
        path = folder / ("cat", "dog", "owl")[number % 3] / f"{number:02d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {number}\n" * number)
    return folder


def test_files_become_shards_that_every_tool_reads(files, tmp_path, capsys):
    common = ("--cache-dir", tmp_path / "cache", "--processes", 1)
    run(capsys, pack.main, files, "--out", tmp_path / "packed", "--max-samples", 8, *common)
    assert digest(tmp_path / "packed") == PACKED
    shards = tmp_path / "packed" / "*.tar"
    run(capsys, index.main, shards, "--checksums", *common)
    seen = run(capsys, info.main, shards, "--classes", *common)
    assert (seen["samples"], seen["classes"]) == (30, {f"{n}": {"samples": 10} for n in range(3)})
    cut = ("--out", tmp_path / "cut", "--max-samples", 15)
    run(capsys, reshard.main, shards, *cut, *common)
    checked = run(capsys, verify.main, tmp_path / "cut" / "*.tar", *common)
    assert (checked["samples"], checked["findings"]) == (30, [])
