"""Ranks of one job have one name on a machine; other jobs have others."""

import multiprocessing

import pytest

from lightning_shards.system.process import job_name


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """An environment without a launcher."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def name_elsewhere(ranks):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(job_name, (ranks,))


def test_a_process_alone_is_a_job(monkeypatch):
    assert job_name(1) == job_name(1) != name_elsewhere(1)
    monkeypatch.setenv("MASTER_PORT", "29500")  # as set for all jobs of a sweep
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert job_name(1) != name_elsewhere(1)


@pytest.mark.parametrize(("ranks", "world_size"), [(2, None), (1, "2"), (2, "2")])
def test_ranks_that_meet_are_one_job(monkeypatch, ranks, world_size):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    if world_size is not None:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    names = []
    for port in ("1", "2"):
        monkeypatch.setenv("MASTER_PORT", port)
        assert job_name(ranks) == name_elsewhere(ranks)
        names.append(job_name(ranks))
    assert names[0] != names[1]


def test_ranks_of_which_nothing_is_known_are_taken_for_those_of_one_job():
    assert job_name(2) == name_elsewhere(2)
