"""What the end of a fit says: the table, and the one change to make."""

from dataclasses import replace
from typing import Any

import pytest

from lightning_shards.profiling.rates import SlowRank, Throughput, TimeTotals, find_slow_rank
from lightning_shards.profiling.report import RunContext, advise_change, write_report


def context(num_workers: int = 2, **options: Any) -> RunContext:
    return RunContext(
        **{"num_workers": num_workers, "cores": 8, "threads": 1, "world_size": 1, "device": "cpu"}
        | options
    )


def rank(wait_s: float, produce_s: float, forward_s: float = 0) -> TimeTotals:
    """1000 samples in 100 steps and 10 s."""
    return TimeTotals(100, 1000, 10, wait_s, wait_s, produce_s, forward_s)


def advice(ranks: list[TimeTotals], situation: RunContext) -> str:
    report = write_report({"whole run": ranks}, situation)
    last = report.splitlines()[-1]
    assert last.startswith("to change: ")
    return last.removeprefix("to change: ")


def test_the_report_is_a_verdict_a_table_and_one_change() -> None:
    spans = {"whole run": [rank(4, 20)], "last epoch": [TimeTotals(10, 100, 2, 1, 1, 4)]}
    assert write_report(spans, context(2)).splitlines() == [
        context(2).throughput(rank(4, 20)).verdict(),
        "                              whole run   last epoch",
        "  trained, samples/s                100           50",
        "  loader alone, samples/s           100           50",
        "  trainer alone, samples/s          167          100",
        "  waited for data                 40.0%        50.0%",
        "  from loader to step              0.0%         0.0%",
        "  bottleneck                     loader       loader",
        "  headroom                         1.7x         2.0x",
        "to change: set num_workers to 4 (now 2)",
    ]


def test_stages_of_a_loader_are_named_and_the_longest_is_to_be_made_cheaper() -> None:
    slow = replace(rank(4, 20), read_s=2.4, decode_s=14.2, collate_s=0.8, transfer_s=1)
    lines = write_report({"whole run": [slow]}, context(2, cores=2)).splitlines()
    assert "  from loader to step             10.0%" in lines
    on_cuda = write_report({"whole run": [slow]}, replace(context(2, cores=2), device="cuda"))
    assert "  moved to the device             10.0%" in on_cuda.splitlines()
    assert lines[-2] == "the loader's time: decode 71%, other 13%, read 12%"
    assert lines[-1] == (
        "to change: make samples cheaper to load (decode takes 71% of their time: smaller images, "
        "or crops that decode less): 4 workers a rank would do, and 2 already fill its 2 cores"
    )


def test_several_ranks_have_a_line_on_the_one_that_holds_the_others() -> None:
    slow = [rank(0, 5), rank(3, 5), rank(0.1, 5)]
    spans = {"whole run": slow, "last epoch": slow}
    lines = write_report(spans, context(world_size=3)).splitlines()
    assert lines[-3] == "  slowest rank, if over 5%            1            1"
    assert lines[-2] == (
        "slowest rank: rank 1 holds all others by its loader: it waited for data 30.0% of the "
        "time, the median rank 1.0%"
    )
    assert lines[-1] == (
        "to change: find out what slows the loader of rank 1: where its machine reads from, and "
        "what else runs there"
    )
    alike = {"whole run": [rank(0, 5)] * 3}
    assert "slowest rank:" not in write_report(alike, context(world_size=3))


@pytest.mark.parametrize(
    ("whole", "last"),
    [
        ([0.0, 3.0, 0.1], [0.0, 0.0, 0.0]),
        ([0.0, 3.0, 0.1], [3.0, 0.1, 0.0]),
    ],
)
def test_a_rank_that_only_the_whole_run_names_is_unsure_and_changes_no_advice(
    whole: list[float], last: list[float]
) -> None:
    spans = {name: [rank(wait_s, 5) for wait_s in each] for name, each in
             (("whole run", whole), ("last epoch", last))}  # fmt: skip
    lines = write_report(spans, context(world_size=3)).splitlines()
    unsure = "slowest rank: unsure: the last epoch does not name it, or the steps are few"
    assert lines[-2] == unsure
    assert "rank 1" not in lines[-1]
    few = [replace(each, batches=19) for each in spans["whole run"]]
    lines = write_report({"whole run": few}, context(world_size=3)).splitlines()
    assert lines[-2] == unsure


def test_a_verdict_after_few_steps_or_that_the_last_epoch_contradicts_is_unsure() -> None:
    bound, idle = rank(4, 20), rank(0, 1)
    few = write_report({"whole run": [replace(bound, batches=19)]}, context())
    assert few.startswith(
        "data throughput: unsure (19 of at least 20 steps), perhaps loader-bound: the trainer could"
    )
    other = write_report({"whole run": [bound], "last epoch": [idle]}, context())
    assert other.startswith(
        "data throughput: unsure (the last epoch was trainer-bound), perhaps loader-bound: "
    )
    alike = write_report(
        {"whole run": [bound], "last epoch": [replace(bound, batches=3)]}, context()
    )
    assert alike.startswith("data throughput: loader-bound: ")


@pytest.mark.parametrize("wait_s", [0.1, 4])
def test_threads_of_torch_that_fight_workers_for_cores_are_named_first(wait_s: float) -> None:
    crowded = context(2, cores=2, threads=2)
    assert advice([rank(wait_s, 20)], crowded) == (
        "set OMP_NUM_THREADS=1 and compare: torch computes by 2 threads, and they share the 2 "
        "cores of a rank with 2 workers"
    )
    for other in (
        replace(crowded, cores=4),
        replace(crowded, threads=1),
        replace(crowded, num_workers=0),
        replace(crowded, device="cuda"),
    ):
        assert "OMP_NUM_THREADS" not in advice([rank(wait_s, 20)], other)


def test_workers_that_are_too_many_for_the_cores_are_to_be_fewer() -> None:
    assert advice([rank(0.1, 5)], context(4, cores=4)) == (
        "set num_workers to 1 (now 4): that would do, and they share the 4 cores of a rank with "
        "the training"
    )
    assert advice([rank(0.1, 5)], context(4, cores=5)).startswith("nothing in the loader")


def test_a_slow_forward_pass_is_told_from_a_slow_loader() -> None:
    ranks = [rank(0, 5, 2), rank(0, 5, 2), rank(0, 5, 7)]
    lines = write_report({"whole run": ranks}, context(world_size=3)).splitlines()
    assert lines[-2] == (
        "slowest rank: rank 2 holds all others by its forward pass: it takes 70.0% of the time, "
        "the median rank's 20.0%"
    )
    assert lines[-1] == (
        "to change: find out what slows the model on rank 2, its device or its machine"
    )


def test_the_larger_loss_is_what_to_change() -> None:
    """A rank's model that costs 50 % of the time, and a wait of 20 % or of 60 %."""
    for wait_s, said in (
        (2, "find out what slows the model on rank 2"),
        (6, "raise prefetch_factor"),
    ):
        ranks = [rank(wait_s, 2, 1), rank(wait_s, 2, 1), rank(wait_s, 2, 6)]
        assert advice(ranks, context(world_size=3)).startswith(said)


def test_one_rank_of_several_says_that_it_speaks_for_itself() -> None:
    report = write_report({"whole run": [rank(0, 5)]}, context(world_size=3))
    assert "these are the figures of rank 0 alone: the fit was interrupted" in report
    assert "rank 0 alone" not in write_report({"whole run": [rank(0, 5)]}, context())


@pytest.mark.parametrize(
    ("device", "rows"),
    [
        ("cpu", ["waited for data 40.0%"]),
        ("cuda", ["waited for data 40.0%", "device starved, at most 10.0%"]),
        ("mps", ["waited for data, at most 40.0%"]),
    ],
)
def test_the_wait_is_called_what_it_is_beside_each_device(device: str, rows: list[str]) -> None:
    sums = TimeTotals(100, 1000, 10, wait_s=4, starved_s=1, produce_s=20)
    report = write_report({"whole run": [sums]}, context(device=device))
    said = [" ".join(line.split()) for line in report.splitlines()[1:]]
    for row in rows:
        assert row in said
    assert sum("at most" in line for line in said) == (device != "cpu")
    assert sum("starved" in line for line in said) == (device == "cuda")


def test_nothing_trained_is_all_there_is_to_say() -> None:
    assert write_report({"whole run": [TimeTotals()]}, context()) == (
        "data throughput: nothing was trained"
    )


# --- the one change -------------------------------------------------------------------------------


def test_a_slow_loader_wants_as_many_workers_as_the_trainer_takes() -> None:
    assert advice([rank(4, 20)], context(2)) == "set num_workers to 4 (now 2)"  # 2 x 10 / 6


def test_workers_are_bounded_by_the_cores_of_a_rank() -> None:
    assert advice([rank(8, 20)], context(2, cores=4)) == (
        "set num_workers to 4, all cores of a rank (now 2; 10 would do)"
    )


def test_where_all_cores_have_workers_samples_must_be_cheaper() -> None:
    for cores in (2, 1):
        assert advice([rank(8, 20)], context(2, cores=cores)).startswith(
            "make samples cheaper to load (smaller images, fewer transforms): 10 workers a rank "
        )


def test_threads_of_processes_are_workers_and_num_workers_is_told_as_it_is_set() -> None:
    """Two processes of two threads each."""
    twos = context(4, threads_per_worker=2)
    assert advice([rank(4, 40)], twos) == "set num_workers to 4 (now 2)"
    assert advice([rank(8, 40)], replace(twos, cores=7)) == (
        "set num_workers to 3, all cores of a rank (now 2; 10 would do)"
    )
    assert advice([rank(8, 40)], replace(twos, cores=5)).endswith(
        "10 workers a rank would do, and 2 already fill its 5 cores"
    )
    assert advice([rank(0.1, 5)], replace(twos, cores=4)).startswith(
        "set num_workers to 1 (now 2): that would do, and they share the 4 cores"
    )


def test_batches_of_the_trainers_own_thread_are_given_to_workers() -> None:
    """Also by a loader that is faster than the trainer: they take turns."""
    said = "(now 0: the trainer's own thread makes the batches)"
    assert advice([rank(8, 8)], context(0)) == f"set num_workers to 4 {said}"
    assert advice([rank(8, 8)], context(0, cores=3)) == f"set num_workers to 3 {said}"
    assert advice([rank(3, 3)], context(0)) == f"set num_workers to 1 {said}"


def test_where_a_number_of_workers_changes_nothing_another_pool_does() -> None:
    fixed = context(1, can_grow=False)
    assert advice([rank(8, 8)], fixed).startswith("set loader.pool to processes (now threads: one ")
    assert advice([rank(8, 8)], replace(fixed, cores=1)).startswith("make samples cheaper to load")
    assert advice([rank(8, 8)], context(0, can_grow=False)) == (
        "set loader.pool to processes and num_workers to 4 (now inline: the trainer's own thread "
        "makes the batches)"
    )


def test_workers_that_are_fast_enough_but_waited_for_need_larger_buffers() -> None:
    assert advice([rank(2, 5)], context(2)).startswith("raise prefetch_factor: ")


def test_a_slow_model_needs_no_change_of_the_loader() -> None:
    for workers in (0, 2):
        assert advice([rank(0.5, 5)], context(workers)) == (
            "nothing in the loader: more workers change nothing, only a faster model does"
        )


def test_two_sides_in_balance_need_no_change() -> None:
    assert advice([rank(0, 20)], context(2)).startswith("nothing: neither waits for the other")


def test_a_loader_that_is_slow_everywhere_wants_workers_though_one_rank_is_slowest() -> None:
    ranks = [rank(4, 20), rank(6, 20), rank(4, 20)]
    assert find_slow_rank(ranks) == SlowRank(1, "loader", 0.6, 0.4)
    assert advice(ranks, context(2, world_size=3)) == "set num_workers to 5 (now 2)"


def test_waiting_that_the_device_did_not_notice_changes_nothing() -> None:
    sums = TimeTotals(100, 1000, 10, wait_s=9, starved_s=0.5, produce_s=5)
    said = advise_change(Throughput(sums, 2, 1), None, context(2, device="cuda"))
    assert said.startswith("nothing in the loader")
