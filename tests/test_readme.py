"""The README tells the truth about the modules and the commands."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_module_map_names_every_module():
    named = re.findall(r"^\| `([\w/]+\.py)` \|", README, re.MULTILINE)
    package = ROOT / "lightning_shards"
    modules = {str(file.relative_to(package)) for file in package.rglob("*.py")}
    assert sorted(named) == sorted(name for name in modules if not name.endswith("__init__.py"))


def test_ci_runs_the_test_command_of_the_readme():
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert 'pip install -c constraints.txt -e ".[test]" && pytest -n 2 --dist loadfile' in README
    assert commands[-1] == "pytest -n 2 --dist loadfile"
    assert 'python -m pip install --quiet -c constraints.txt -e ".[test]"' in commands


def test_files_and_functions_stay_short():
    long = {
        str(file.relative_to(ROOT)): lines
        for file in (ROOT / "lightning_shards").rglob("*.py")
        if (lines := len(file.read_text().splitlines())) > 400
    }
    assert long == {}


def test_the_table_of_speed_is_that_of_the_last_whole_run():
    results = (ROOT / "benchmarks" / "results" / "peers.md").read_text()
    table = results.split("## What it must show\n\n")[1].split("\n\n")[0]
    assert table.count("\n") > 10
    assert table in README
