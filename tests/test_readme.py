"""The README tells the truth about the commands and the speed, and stays short."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PEERS = (ROOT / "benchmarks" / "results" / "peers.md").read_text()


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
    assert len(lines) <= 140
    assert [line for line in lines if len(line) > 110] == []


def test_files_stay_short():
    long = {
        str(file.relative_to(ROOT)): lines
        for file in (ROOT / "lightning_shards").rglob("*.py")
        if (lines := len(file.read_text().splitlines())) > 600
    }
    assert long == {}


def test_the_table_of_speed_is_that_of_the_last_whole_run():
    table = PEERS.split("## What it must show\n\n")[1].split("\n\n")[0]
    assert table.count("\n") > 10
    assert table in (ROOT / "docs" / "throughput.md").read_text()


def test_the_rates_in_the_readme_are_those_of_the_last_whole_run():
    rows = [line for line in PEERS.splitlines() if line.startswith("| ")]
    told = README.split("## Speed")[1].split("\n## ")[0]
    rates = [
        [cell.strip() for cell in line.split("|")[2:5]]
        for line in told.splitlines()
        if line.startswith("|") and any(unit in line for unit in ("0x", "%"))
    ]
    of_rate = {
        "200 bytes": "SMALL against webdataset, both",
        "4 kB": "TOK against webdataset, both",
    }
    for (_, begin), (_, peer, ours) in zip(of_rate.items(), rates[:2], strict=True):
        (row,) = [row for row in rows if row.startswith(f"| {begin}")]
        assert f" {peer} |" in row
        assert f" {ours} (ours, processes) |" in row
    (row,) = [row for row in rows if row.startswith("| IMG, same transform, share of the floor")]
    webdataset = next(row for row in rows if row.startswith("| webdataset "))  # IMG is the first
    percent, peer, ours = rates[2]
    assert f" {peer} |" in row
    assert f" {ours} (ours, processes) |" in row
    assert f" {percent.removesuffix(' %')} |" in webdataset
