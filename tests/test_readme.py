"""The README tells the truth about the commands and the speed, and stays short."""

import json
import re
from pathlib import Path

from benchmarks.peers import report
from benchmarks.peers.table import median, number, ratios

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_ci_runs_the_test_command_of_the_readme():
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert 'pip install -c constraints.txt -e ".[test]" && pytest -n 2 --dist loadfile' in README
    assert commands[-1] == "pytest -n 2 --dist loadfile"
    assert 'python -m pip install --quiet -c constraints.txt -e ".[docs,release,test]"' in commands


def test_the_readme_names_the_main_command_and_one_of_the_slow_suites():
    assert (
        'pip install -c constraints.txt -e ".[examples]" && python examples/quickstart.py' in README
    )
    (slow,) = set(re.findall(r"`(pytest -m matrix [\w/]+)`", README))
    assert f"`{slow}`" in (ROOT / "CONTRIBUTING.md").read_text()
    assert (ROOT / slow.split()[-1]).is_dir()


def test_the_readme_is_short_and_its_lines_fit():
    lines = README.splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 110] == []


def test_files_stay_short():
    long = {
        str(file.relative_to(ROOT)): lines
        for file in (ROOT / "lightning_shards").rglob("*.py")
        if (lines := len(file.read_text().splitlines())) > 600
    }
    assert long == {}


def test_the_tables_of_speed_are_those_of_the_last_whole_run():
    results = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text())
    assert report.summary(results) in (ROOT / "docs" / "throughput.md").read_text()
    told = README.split("## Speed")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in told.splitlines() if line.startswith("|")][2:]
    floor, _, small, _, tokens, *_ = report.figures(results)
    for row, (what, theirs, ours) in zip(rows, (small, tokens, floor), strict=True):
        best, own = (number(median(each.values), each.unit) for each in (theirs, ours))
        assert [cell.strip() for cell in row[2:]] == [f"{best} ({theirs.row})", own], what
    images = {name: row["samples_per_s"] for name, row in results["rates"]["IMG"].items()}
    share = median(ratios(images["webdataset"], report.floor(images), 100.0))
    assert [row[1].strip() for row in rows] == ["1.00x", "1.00x", number(share, " %")]
