"""The parts of `benchmarks/remote` that only calculate, and its proxy before a small server."""

import importlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SIZE = 200_000
NAMES = ("__main__", "campaign", "goals", "job", "loaders", "proxy", "report", "server")


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return {name: importlib.import_module(f"benchmarks.remote.{name}") for name in NAMES}


@pytest.fixture
def upstream():
    """The port of a server that answers each request with so many bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]


def serve(listener):
    while True:
        try:
            client = listener.accept()[0]
        except OSError:
            return
        threading.Thread(target=answer, args=(client,), daemon=True).start()


def answer(client):
    with client:
        while client.recv(1000):
            client.sendall(bytes(range(250)) * (SIZE // 250))


@pytest.fixture
def proxy(modules, upstream):
    made = modules["proxy"].Proxy(upstream, 0.01)
    reading, writing = os.pipe()
    thread = threading.Thread(target=made.run, args=(reading,), daemon=True)
    thread.start()
    yield made
    os.close(writing)
    thread.join(10)
    os.close(reading)
    assert not thread.is_alive()


def fetch(client):
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    data = bytearray()
    while len(data) < SIZE:
        data += client.recv(SIZE)
    return data


def test_the_proxy_changes_no_byte_and_counts_all(modules, proxy):
    ask = modules["server"].ask
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        assert [fetch(client) for _ in range(2)] == [bytes(range(250)) * (SIZE // 250)] * 2
    told = ask(proxy.control)
    assert (told["bytes"], told["requests"], told["connections"]) == (2 * SIZE, 2, 1)
    assert told["first"] <= time.perf_counter()
    assert ask(proxy.control, mark=True)["first"] is None


def test_the_proxy_is_as_slow_as_the_link(modules, proxy):
    modules["server"].ask(proxy.control, rate=2e6)
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        fetch(client)
    # twice the latency, and most of the time of all bytes but those of the last turn
    assert time.perf_counter() - begun > 0.04


def row(**values):
    empty = {"samples": None, "steady_per_s": 1.0, "first_ms": 50.0, "connections": 64}
    rows = {key: [value] * 2 for key, value in {**empty, "bytes": None, "requests": None}.items()}
    return {"error": "", **rows, **values}


@pytest.fixture
def results():
    fast = {"samples": 1000, "bytes_per_sample": 100_000, "tar_bytes": 10**8, "pieces": 16}
    rates = {
        "ours, 200 MB/s": row(
            samples_per_s=[1800.0, 950.0], samples=[960, 960], bytes=[10**8, 1.2e8],
            requests=[32, 16],
        ),
        "ours, local files, 200 MB/s": row(samples_per_s=[3000.0, 1000.0]),
        "webdataset, 200 MB/s": row(samples_per_s=[1000.0, 500.0]),
        "MosaicML Streaming, 200 MB/s": row(samples_per_s=[900.0, None]),
        "LitData, 200 MB/s": row(samples_per_s=[1200.0, 500.0]),
        "ours, 20 MB/s": row(samples_per_s=[180.0, None]),
    }  # fmt: skip
    machine = {
        "date": "2026-11-23 04:00", "cores": 2, "cpu": "a processor", "ram_gib": 8.0,
        "load_average_at_start": [0.1, 0.2, 0.3], "system": "Linux 6", "python": "3.11.7",
        "versions": {"torch": "2.13.0"},
    }  # fmt: skip
    return {
        "machine": machine,
        "settings": {"repeats": 2, "seconds": 12.0, "batch": 64, "command": "python"},
        "peers": {"LitData": {"version": "0.2", "error": ""}},
        "data": {
            "IMG": {
                "200 MB/s": {**fast, "table_bytes": 3000.0},
                "20 MB/s": {**fast, "table_bytes": 3000.0},
            }
        },
        "epochs": {"IMG": rates},
        "firsts": {
            "ours, 200 MB/s, 0 %": [1000.0, 2000.0],
            "ours, 200 MB/s, 95 %": [1100.0, 2000.0],
            "webdataset, 200 MB/s, 0 %": [500.0, 500.0],
        },
        "caches": {
            "first_bytes": [100, 100],
            "second_bytes": [50, 60],
            "long_first_bytes": [200, 200],
            "long_second_bytes": [90, 90],
        },
    }


def cells(modules, results, start):
    (found,) = [
        goal.cells({}) for goal in modules["goals"].goals(results) if goal.name.startswith(start)
    ]
    return found


def test_a_share_is_of_the_lesser_of_link_and_local_rate_in_each_round(modules, results):
    name = "IMG, share of the least of link and own local rate, 200"
    assert cells(modules, results, name)[1:4] == [
        "92.5 (90.0 to 95.0)",
        "at least 90.0 %",
        "yes",
    ]
    slow = "IMG, share of the least of link and own local rate, 20 "
    assert cells(modules, results, slow)[1:] == [
        "90.0 (90.0 to 90.0)",
        "at least 95.0 %",
        "no",
        "not yet known",
    ]


def test_bytes_and_requests_are_those_of_whole_epochs(modules, results):
    start = "IMG, an epoch, tables in it, 200 MB/s:"
    assert cells(modules, results, f"{start} bytes")[1] == "1.10 (1.00 to 1.20)"
    assert cells(modules, results, f"{start} GETs")[1] == "1.50 (1.00 to 2.00)"
    results["epochs"]["IMG"]["ours, 200 MB/s"]["samples"] = [960, 500]
    assert cells(modules, results, f"{start} bytes")[1] == "1.00 (1.00 to 1.00)"


def test_a_long_epoch_needs_each_shard_several_times(modules, results):
    results["epochs"]["IMG"]["ours, long epoch, 200 MB/s"] = row(
        samples_per_s=[1800.0, 950.0], samples=[3968, 3000], bytes=[4.2e8, 1e8], requests=[80, 16]
    )
    start = "IMG, a long epoch, tables in it, 200 MB/s:"
    assert cells(modules, results, f"{start} bytes")[1] == "1.05 (1.05 to 1.05)"
    assert cells(modules, results, f"{start} GETs")[1] == "1.25 (1.25 to 1.25)"


def test_the_report_has_all_rows_and_what_failed(modules, results):
    rows = results["epochs"]["IMG"]
    rows["webdataset, 200 MB/s"] |= {"error": "status 1: oh"}
    page = modules["report"].write_report(results, {})
    assert "- webdataset: status 1: oh" in page
    assert "1,000 samples of 100,000 bytes of tar each, in 16 pieces" in page
    assert "| ours, local files" in page
    assert "nan" not in page


def test_options_choose_data_sets(modules):
    main = modules["__main__"]
    sets = main.data_sets(main.parse(["--quick", "--only", "TOK"]))
    assert [data.samples for data in sets["TOK"].values()] == [16_000, 4_000]
    for refused in (["--only", "IMAGES"], ["--links", "30"], ["--peers", "webdataset"]):
        with pytest.raises(SystemExit):
            main.parse(refused)
