"""The parts of `benchmarks` that only calculate, one fresh process, and the proxy of `remote`."""

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.peers import campaign, processes, report, table
from benchmarks.remote import report as remote_report
from benchmarks.remote.proxy import Proxy
from benchmarks.remote.server import ask

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SIZE = 200_000


@pytest.mark.parametrize(
    ("name", "write"), [("peers", report.write_report), ("remote", remote_report.write_report)]
)
def test_a_page_shows_the_results_that_were_measured(name, write):
    results = json.loads((RESULTS / f"{name}.json").read_text())
    assert write(results) == (RESULTS / f"{name}.md").read_text()


def test_a_ratio_is_of_values_of_the_same_round():
    over = table.ratios([10.0, None, 90.0, 8.0], [5.0, 1.0, 30.0, None])
    assert over == [2.0, None, 3.0, None]
    assert table.interval(over, "x") == "2.50x (2.00 to 3.00)"
    assert table.interval([None]) == "failed"
    assert table.best({"one": [1.0, 3.0], "other": [2.5, None]}, ["one", "other"]) == "other"


def test_the_floor_is_the_faster_one_of_each_round():
    threads, processes_ = report.FLOORS
    assert report.floor({threads: [1000.0, 2000.0], processes_: [900.0, 2100.0]}) == [1000, 2100]


def test_the_page_tells_failures_and_what_could_not_be_installed():
    results = json.loads((RESULTS / "peers.json").read_text())
    results["rates"]["IMG"]["ours, inline"]["error"] = "status 1: oh"
    results["peers"]["wids"]["error"] = "no such version"
    page = report.write_report(results)
    assert "- ours, inline: status 1: oh" in page
    assert "Not installed: wids: no such version" in page
    nothing = results | {"rates": {}, "resume": {}}
    assert "| - | - |" in report.write_report(nothing)


@pytest.mark.parametrize("module", ["benchmarks.peers", "benchmarks.remote"])
def test_a_misspelt_name_is_refused_before_anything_is_made(module):
    command = [sys.executable, "-m", module, "--peers", "nobody"]
    run = subprocess.run(  # noqa: PLW1510 its status is looked at
        command, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 2
    assert "not nobody" in run.stderr


def test_names_stand_in_the_order_of_the_tables():
    parser = campaign.parser_of("", repeats=1, seconds=1.0)
    assert campaign.listed(parser, "b,a", ("a", "b", "c")) == ["a", "b"]
    assert campaign.listed(parser, "", ("a", "b")) == []
    assert campaign.listed(parser, None, ("a", "b")) == ["a", "b"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("answer(lambda job: {'got': job})", ""),
        ("raise SystemExit('oh')", "status 1: oh"),
        ("input()\nimport time; time.sleep(100)", "not done after 2 s: no output"),
    ],
)
def test_a_fresh_process_gives_its_result_or_says_why_not(code, error):
    program = f"from benchmarks.peers.processes import answer\n{code}"
    outcome = processes.run_fresh(
        [sys.executable, "-c", program], 5, 2 if "2 s" in error else 60, {}
    )
    assert outcome.error == error
    assert error or outcome.result["got"] == 5


@pytest.fixture
def proxy():
    """A proxy before a server that answers each request with so many bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield Proxy(listener.getsockname()[1], 0.01)


def serve(listener):
    client = listener.accept()[0]
    with client:
        while client.recv(1000):
            client.sendall(bytes(range(250)) * (SIZE // 250))


def fetch(client):
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    data = bytearray()
    while len(data) < SIZE:
        data += client.recv(SIZE)
    return data


def test_the_proxy_changes_no_byte_counts_all_and_is_as_slow_as_the_link(proxy):
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        assert fetch(client) == bytes(range(250)) * (SIZE // 250)
        ask(proxy.control, rate=2e6)
        begun = time.perf_counter()
        assert fetch(client) == bytes(range(250)) * (SIZE // 250)
        # all but the last part are waited for, and the latency
        assert time.perf_counter() - begun > 0.03
    told = ask(proxy.control)
    assert (told["requests"], told["connections"]) == (2, 1)
    assert told["first"] <= time.perf_counter()
    assert ask(proxy.control, mark=True)["first"] is None
