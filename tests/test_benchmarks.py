"""The pages of `benchmarks`, the names that they take, the check of a device, and the proxy."""

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.peers import report
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


@pytest.mark.slow
def test_all_checks_of_a_device_are_green_on_the_cpu(forked_programs):
    command = ["benchmarks/device.py", "--device", "cpu", "--num-workers", "0"]
    output, statuses = forked_programs.run(command, ROOT)
    assert statuses == [0], output
    lines = output.splitlines()
    assert [line.split(":")[0].split() for line in lines[:3]] == [
        ["ok", "same_bytes"],
        ["ok", "monitor"],
        ["ok", "resumed"],
    ]
    assert lines[3] == "0 of 3 checks failed on cpu, nodes: 1"


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
