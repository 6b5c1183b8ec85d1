"""`lightning-shards selftest` finds what is wrong with a machine, and says what it skipped."""

import json
from dataclasses import replace

import pytest
import torch

from lightning_shards import collectives
from lightning_shards.errors import ConfigError
from lightning_shards.tools import selftest, selftest_checks, selftest_fits
from lightning_shards.tools.selftest_checks import (
    CheckResult,
    FailedError,
    SkippedError,
    Subject,
    compare_moved,
    pack_subject,
    read_each_sample_once,
    require_launched,
    run_check,
    watch_events,
)
from lightning_shards.tools.selftest_fits import require_sound

SOUND = {
    "samples_per_s": 100.0,
    "loader_samples_per_s": 110.0,
    "trainer_samples_per_s": 200.0,
    "wait_fraction": 0.5,
    "transfer_fraction": 0.1,
    "starved_fraction": 0.4,
    "loader_read_fraction": 0.25,
    "loader_other_fraction": 0.75,
}


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """As the command packs it, with loaders that start no process."""
    folder = tmp_path_factory.mktemp("selftest")
    return pack_subject(folder, "cpu", devices=1, num_nodes=1, num_workers=0, seconds=0.05)


def test_a_sound_machine_without_a_device_fails_nothing_and_says_what_it_skipped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    selftest.main(["--device", "cuda", "--num-workers", "0", "--seconds", "0.05", "--json"])
    document = json.loads(capsys.readouterr().out)
    outcomes = {check["name"]: check["outcome"] for check in document["checks"]}
    ran = ("samples", "resume", "slow loader", "slow model", "rates")
    skipped = ("workers", "device", "pinned", "events")
    assert outcomes == dict.fromkeys(ran, "passed") | dict.fromkeys(skipped, "skipped")
    reasons = {check["text"] for check in document["checks"] if check["name"] in skipped[1:]}
    assert reasons == {"there is no cuda device here"}
    assert document["device"] == "cpu"


def test_a_failed_check_is_told_and_is_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(subject: Subject) -> str:
        raise FailedError("two and two are five")

    def crash(subject: Subject) -> str:
        return str(1 // 0)

    monkeypatch.setattr(selftest_checks, "CHECKS", {"sums": fail, "quotients": crash})
    monkeypatch.setattr(selftest_fits, "FIT_CHECKS", {"fine": lambda _: "as it should be"})
    with pytest.raises(SystemExit) as ended:
        selftest.main(["--device", "cpu"])
    assert ended.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "failed   sums: two and two are five",
        "failed   quotients: ZeroDivisionError: integer division or modulo by zero",
        "passed   fine: as it should be",
        "1 passed, 0 skipped, 2 failed",
    ]


def test_labels_that_were_not_read_as_written_are_found(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest_checks, "NUM_CLASSES", 9)
    with pytest.raises(FailedError, match="a label was not read as it was written"):
        read_each_sample_once(subject)


def test_a_launcher_that_started_other_processes_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="--num-nodes 2 needs a launcher"):
        require_launched(1, 2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"torchrun started 2 processes.*are 1"):
        require_launched(1, 1)
    require_launched(2, 1)


def test_failures_of_other_ranks_are_told_and_are_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def from_two_ranks(results: list[CheckResult]) -> list[list[CheckResult]]:
        return [results, [CheckResult("sums", "failed", "rank 1 cannot add")]]

    monkeypatch.setattr(collectives, "gather", from_two_ranks)
    monkeypatch.setattr(selftest_checks, "CHECKS", {"sums": lambda _: "two and two are four"})
    monkeypatch.setattr(selftest_fits, "FIT_CHECKS", {})
    with pytest.raises(SystemExit) as ended:
        selftest.main(["--device", "cpu", "--json"])
    assert ended.value.code == 1
    assert "rank 1 cannot add" in capsys.readouterr().out


def test_batches_of_threads_are_compared_too(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are by `compare_workers`, without the start of processes."""
    threads = selftest_checks._batches(subject.data(pool="threads", num_workers=2))
    expected = list(selftest_checks._batches(subject.data()))
    selftest_checks._require_same(threads, expected, "by threads")


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda batches: batches[1]["image"].add_(1), "'image' of batch 1"),
        (lambda batches: batches[2]["__key__"].reverse(), "'__key__' of batch 2"),
        (lambda batches: batches.pop(), "7 batches by ghosts instead of 8"),
    ],
)
def test_batches_that_differ_are_found(subject: Subject, spoil, fault: str) -> None:
    batches, expected = (list(selftest_checks._batches(subject.data())) for _ in range(2))
    spoil(batches)
    with pytest.raises(FailedError, match=fault):
        selftest_checks._require_same(batches, expected, "by ghosts")


def test_images_that_are_not_those_written_are_found(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest_checks, "image_of", lambda number: number)
    assert run_check("samples", read_each_sample_once, subject).outcome == "failed"


def test_a_sound_report_passes() -> None:
    require_sound(SOUND)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"loader_read_fraction": 0.5}, "add up to 1"),
        ({"loader_read_fraction": -0.25, "loader_other_fraction": 1.25}, "below 0"),
        ({"transfer_fraction": 0.6}, "at most the whole time"),
        ({"starved_fraction": 0.6}, "starves at most"),
        ({"samples_per_s": 300.0}, "no faster than its trainer"),
    ],
)
def test_a_report_that_contradicts_itself_is_found(changed: dict[str, float], rule: str) -> None:
    with pytest.raises(FailedError, match=rule):
        require_sound(SOUND | changed)


def test_a_fit_with_a_slow_loader_that_blames_the_model_is_found(subject: Subject) -> None:
    with pytest.raises(FailedError, match="the loader was made slow"):
        selftest_fits._require_side(SOUND | {"loader_samples_per_s": 300.0}, "loader", "trainer")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("check", [compare_moved, watch_events])
def test_a_cuda_device_is_sound(check, subject: Subject) -> None:
    assert check(replace(subject, device=torch.device("cuda")))


def test_what_is_no_device_is_skipped(subject: Subject) -> None:
    with pytest.raises(SkippedError, match="needs a cuda or mps device, not cpu"):
        compare_moved(subject)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seconds", "0"], "--seconds must be above 0, got 0"),
        (["--num-workers", "-1"], "--num-workers must be at least 0, got -1"),
        (["--num-nodes", "0"], "--num-nodes must be at least 1, got 0"),
    ],
)
def test_options_that_cannot_work_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        selftest.main(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
