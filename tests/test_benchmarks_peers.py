"""The parts of `benchmarks/peers` that only calculate; nothing is installed or measured."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RATES = {
    "floor: transform, 2 threads": [1000.0, 2000.0, 500.0],
    "floor: transform, 2 processes": [900.0, 2100.0, 400.0],
    "webdataset": [500.0, 1000.0, 250.0],
    "webdataset, own decoders": [250.0, 500.0, 125.0],
    "torch DataLoader, files": [600.0, 1000.0, 275.0],
    "ours, processes": [800.0, 1600.0, 400.0],
    "ours, threads": [970.0, 2037.0, 490.0],
}


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    names = ("__main__", "catalogue", "job", "memory", "report", "table", "targets")
    return {name: importlib.import_module(f"benchmarks.peers.{name}") for name in names}


@pytest.fixture
def table(modules):
    return modules["table"]


def row(values, pss=100.0):
    rounds = len(values)
    return {
        "samples_per_s": values,
        "first_ms": [50.0] * rounds,
        "peak_pss_mb": [pss] * rounds,
        "imported_mb": [30.0] * rounds,
        "error": "",
    }


@pytest.fixture
def results():
    rates = {name: row(values) for name, values in RATES.items()}
    rates["torch DataLoader, files"] = row(RATES["torch DataLoader, files"], pss=90.0)
    return {
        "machine": {
            "date": "2026-11-21 16:00", "cores": 2, "cpu": "a processor", "ram_gib": 8.0,
            "load_average_at_start": [0.1, 0.2, 0.3], "system": "Linux 6", "python": "3.11.7",
            "versions": {"torch": "2.13.0"},
        },
        "settings": {"repeats": 3, "command": "python -m benchmarks.peers"},
        "peers": {
            "litdata": {"version": "", "error": "ERROR: no such version"},
            "ours": {"version": "", "error": ""},
        },
        "data": {"IMG": {"samples": 4096, "bytes_per_sample": 70_000}},
        "rates": {"IMG": rates},
        "resume": {
            "webdataset": {"0": [50.0, 60.0], "50": [1000.0, 900.0], "95": [2000.0, 1800.0]},
            "ours, processes": {"0": [100.0, 80.0], "50": [100.0, 80.0], "95": [105.0, 84.0]},
            "ours, threads": {"0": [10.0, 10.0], "50": [10.0, 10.0], "95": [12.0, 12.0]},
        },
        "epoch_ends": {
            "webdataset": [100.0, 80.0],
            "ours, resampled": [1.0, 0.8],
            "ours, shuffled": [4.0, 3.2],
        },
        "imports": {"package_ms": [1.0, 2.0]},
        "monitor": {"bare": [110.0, 112.0], "DataThroughputMonitor": [12.0, 14.0]},
    }  # fmt: skip


def verdict(modules, results, start, held_by=None):
    rows = modules["targets"].verdicts(results, held_by or {})
    (found,) = [each for each in rows if each[0].startswith(start)]
    return found


def test_the_spread_of_rounds_leaves_out_those_that_failed(table):
    assert table.spread([3.0, None, 1.0, 10.0]) == (3.0, 1.0, 10.0)
    assert table.spread([None, None]) is None
    assert table.spread([]) is None


def test_a_ratio_is_the_median_of_the_ratios_of_rounds(table):
    assert table.ratio([10.0, 40.0, 90.0], [10.0, 20.0, 30.0]) == 2.0
    assert table.ratio([10.0, None, 90.0], [None, 20.0, 30.0]) == 3.0
    assert table.ratio([None], [1.0]) is None
    assert table.ratio([1.0], []) is None


def test_the_share_of_the_floor_is_of_the_faster_floor_of_each_round(modules, results):
    _, peer, ours, limit, reached, holds = verdict(modules, results, "IMG, same transform")
    assert ours == "97.0 % (ours, threads)"
    assert peer == "55.0 % (torch DataLoader, files)"
    assert (limit, reached, holds) == ("at least 95.0 %", "yes", "")


def test_a_figure_that_is_not_reached_says_what_holds_it(modules, results):
    name = "first batch after a resume at 95 % of an epoch, against at 0 %"
    row = verdict(modules, results, name, {name: "the lists of members are read"})
    assert row[2:] == [
        "1.20x (ours, threads)",
        "at most 1.10x",
        "no",
        "the lists of members are read",
    ]
    assert verdict(modules, results, name)[-1] == "not yet known"


def test_memory_is_judged_by_our_fastest_pool(modules, results):
    row = verdict(modules, results, "peak PSS")
    assert row[1:5] == ["90.0 MB (torch DataLoader, files)", "100 MB (ours, threads)",
                        "at most 90.0 MB", "no"]  # fmt: skip


def test_what_was_not_measured_is_neither_reached_nor_missed(modules, results):
    row = verdict(modules, results, "SMALL, our best")
    assert row[1:3] == ["not measured", "not measured"]
    assert row[4:] == ["not measured", ""]
    del results["rates"], results["resume"], results["epoch_ends"], results["imports"]
    reached = [row[4] for row in modules["targets"].verdicts(results, {})]
    assert set(reached) == {"not measured", "no"}  # the monitor's 13 us
    assert "nan" not in modules["report"].write_report(results, {})


def test_the_report_names_rows_failures_and_what_could_not_be_installed(modules, results):
    results["rates"]["IMG"]["ours, inline"] = row([None, None, None]) | {"error": "status 1: oh"}
    page = modules["report"].write_report(results, {})
    assert "| ours, threads" in page
    assert "970 (490 to 2,037)" in page
    assert "- ours, inline: status 1: oh" in page
    assert "- litdata: ERROR: no such version" in page
    assert "- ours: " not in page
    assert "torch 2.13.0" in page


def test_webdataset_and_ours_always_take_part(modules):
    catalogue = modules["catalogue"]
    assert [peer.name for peer in catalogue.chosen(["wids"])] == ["webdataset", "wids", "ours"]
    assert "ray" not in [peer.name for peer in catalogue.chosen(None)]
    with pytest.raises(ValueError, match=r"not nobody$"):
        catalogue.chosen(["nobody"])


def test_the_driver_starts_without_any_installed_package():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "import benchmarks.peers.__main__ as main; main.parse(['--quick']); "
        "import benchmarks.remote.__main__ as main; main.parse(['--quick'])"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT)]
    subprocess.run(command, check=True, timeout=60)


def test_batches_of_the_measured_mixture_are_composed_exactly(modules, tmp_path):
    quotas = importlib.import_module("benchmarks.peers.quotas")
    assert quotas.counts_of("ours", tmp_path) == [16] * quotas.BATCHES


def test_a_mixture_resumed_on_fewer_ranks_loses_and_repeats_nothing(modules, tmp_path):
    resumed = importlib.import_module("benchmarks.peers.resumed_mixtures")
    resumed.MIXTURES["ours"].prepare(tmp_path)
    for rank in range(2):
        resumed.run_rank("ours", tmp_path, resumed.FIRST, rank, 2, resumed=False)
    seen = resumed.names_of(tmp_path, 2)
    resumed.run_rank("ours", tmp_path, resumed.EPOCH - resumed.FIRST, 0, 1, resumed=True)
    seen += resumed.names_of(tmp_path, 1)
    assert resumed.counted(seen) == {"trained": 4096, "lost": 0, "repeated": 0}
    again = resumed.counted(seen[:-64] + seen[:64])
    assert again == {"trained": 4096, "lost": 64, "repeated": 64}
