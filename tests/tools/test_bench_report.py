"""What `bench` says of figures: the spread, the setting to take, and what limits it."""

import pytest

from lightning_shards.errors import ConfigError
from lightning_shards.profiling.measuring import Measurement, TimeTotals
from lightning_shards.tools import bench_report
from lightning_shards.tools.bench_report import (
    Runs,
    advise_settings,
    as_document,
    as_text,
    command_line,
    hopeful,
    save_bench_plot,
    spread_of,
)
from lightning_shards.tools.bench_settings import Setting

INLINE, THREAD, PROCESS = Setting("inline", 0), Setting("threads", 1), Setting("processes", 1)
PROCESSES = Setting("processes", 2)


def windows(*rates, wait_s=0.0, stages=None):
    """Runs of two seconds."""
    produce_s = 2.0 if stages else 0.0
    return [
        Measurement(TimeTotals(9, 2 * rate, 2.0, wait_s, produce_s=produce_s), stages or {})
        for rate in rates
    ]


def row(setting, loader, both=None, **others):
    return Runs(setting, loader=windows(loader), both=windows(both) if both else [], **others)


def test_the_spread_is_the_median_between_least_and_most():
    assert spread_of(windows(1200, 90, 1000)) == (1000, 90, 1200)
    assert str(spread_of(windows(1200, 90, 1000))) == "1,000 (90 to 1,200)"


def test_the_cheapest_setting_within_5_percent_of_the_best_is_taken():
    rows = [row(PROCESSES, 100), row(PROCESS, 95.5), row(THREAD, 95.1), row(INLINE, 94.9)]
    advice = advise_settings(rows, [])
    assert advice.runs.setting == THREAD
    assert advice.sentence == (
        "1 thread is the cheapest within 5 % of the best: 95 samples/s against 100 with 2 processes"
    )


def test_the_best_setting_is_taken_where_nothing_cheaper_comes_near():
    advice = advise_settings([row(INLINE, 50), row(PROCESSES, 100)], [])
    assert (advice.runs.setting, advice.limit) == (PROCESSES, "loader")
    assert advice.sentence == "2 processes is the best: 100 samples/s"


def test_the_fit_decides_where_there_is_one():
    rows = [row(INLINE, 500, 80), row(PROCESSES, 200, 100)]
    assert advise_settings(rows, windows(1000)).runs.setting == PROCESSES


@pytest.mark.parametrize(
    ("loader", "both", "trainer", "limit", "said"),
    [
        (900, 95, 100, "trainer", "it takes 100 samples/s alone"),
        (100, 90, 400, "loader", "the loader is the limit: 100 samples/s alone, the trainer could"),
        (150, 80, 120, "both", "(trainer 120 samples/s, loader 150), together they share"),
    ],
)
def test_what_limits_the_rate_is_said_with_the_numbers(loader, both, trainer, limit, said):
    advice = advise_settings([row(THREAD, loader, both)], windows(trainer))
    assert advice.limit == limit
    assert said in advice.sentence


@pytest.mark.parametrize(
    ("both", "trainer", "doubt"),
    [
        ([113], [39], "the fit took 113 samples/s, and the trainer alone only 39, so something"),
        ([60, 100], [120], "runs that should be equal differ 1.7 times"),
        ([100, 100], [80, 125], "runs that should be equal differ 1.6 times"),
    ],
)
def test_runs_that_cannot_be_or_that_differ_much_are_unsure(both, trainer, doubt):
    runs = Runs(THREAD, loader=windows(900), both=windows(*both))
    advice = advise_settings([runs], windows(*trainer))
    assert advice.limit == "unsure"
    assert advice.sentence.startswith(f"unsure: {doubt}")
    assert "measure again where nothing else runs, with more --seconds" in advice.sentence
    assert "perhaps 1 thread is the best" in advice.sentence


def test_settings_that_are_far_from_the_best_are_not_measured_again():
    slow, fast, configured = row(INLINE, 500, 49), row(PROCESS, 200, 100), row(THREAD, 90, 20)
    configured.is_configured = True
    refused = Runs(PROCESSES, refused="no")
    assert hopeful([slow, fast, configured, refused]) == [fast, configured]
    assert hopeful([refused]) == []


@pytest.mark.parametrize(("loader", "scale"), [(400, "linear"), (600, "log")])
def test_the_plot_shows_low_rates_beside_high_ones(tmp_path, monkeypatch, loader, scale):
    drawn = []
    monkeypatch.setattr(bench_report, "save_figure", lambda figure, _: drawn.append(figure))
    save_bench_plot("x.png", "", [row(INLINE, loader, 90)], windows(100))
    (axes,) = drawn[0].axes
    assert axes.get_yscale() == scale
    lowest, highest = axes.get_ylim()
    assert lowest < 90 < loader < highest


def test_a_slow_loader_is_told_its_largest_stage_but_never_the_rest():
    runs = row(PROCESS, 100, 90)
    runs.loader = windows(100, stages={"open": 0.1, "read": 0.4, "decode": 0.5})
    assert runs.stage_shares() == pytest.approx(
        {"open": 0.05, "read": 0.2, "decode": 0.25, "rest": 0.5}
    )
    assert advise_settings([runs], windows(300)).sentence.endswith("; 25% of its work is decode")


def test_no_settings_but_refused_ones_are_an_error():
    with pytest.raises(ConfigError, match="no setting can be run: 1 thread: it draws"):
        advise_settings([Runs(THREAD, refused="it draws")], windows(3))


def test_the_table_has_a_row_for_each_setting_and_a_line_for_each_refused_one():
    refused = Runs(PROCESS, loader=windows(7), refused="it cannot be pickled")
    totals = Runs(
        INLINE,
        is_configured=True,
        loader=windows(10, 30, 20, stages={"read": 0.5, "decode": 1.5}),
        both=windows(8, wait_s=1.0),
    )
    advice = "20 samples/s alone, the trainer could take 40; 0 (inline) is the best: 8 samples/s"
    assert as_text("shards", [totals, refused], windows(40)).splitlines() == [
        "shards",
        "trainer alone: 40 (40 to 40) samples/s",
        "",
        "workers        loader alone        both  waited  read  decode  rest",
        "0 (inline) *  20 (10 to 30)  8 (8 to 8)     50%   25%     75%    0%",
        "1 process: refused: it cannot be pickled",
        "",
        f"the loader is the limit: {advice}; 75% of its work is decode",
        "to set it: --data.num_workers=0",
    ]


def test_the_document_has_no_rates_of_refused_settings():
    refused = Runs(PROCESS, loader=windows(7), refused="no")
    document = as_document({"repeats": 1}, [row(THREAD, 5), refused], [])
    assert document["repeats"] == 1
    assert document["trainer"] is None
    assert document["settings"][1] == {
        "pool": "processes",
        "num_workers": 1,
        "threads_per_worker": 1,
        "is_configured": False,
        "refused": "no",
        "loader": None,
        "both": None,
        "wait_fraction": None,
        "stages": {},
    }
    assert document["recommended"]["pool"] == "threads"


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        (INLINE, "--data.num_workers=0"),
        (Setting("own", 3), "--data.num_workers=3"),
        (Setting("threads", 3), "--data.num_workers=3 --data.loader.pool=threads"),
        (
            Setting("processes", 2, 4),
            "--data.num_workers=2 --data.loader.pool=processes --data.loader.threads_per_worker=4",
        ),
    ],
)
def test_a_setting_is_given_as_options(setting, options):
    assert command_line(setting) == options


@pytest.mark.parametrize("trainer", [[], [9.0]])
def test_the_plot_leaves_out_what_was_refused(tmp_path, trainer):
    rows = [row(INLINE, 5, 4), Runs(THREAD, refused="no")]
    path = tmp_path / "new" / "rates.svg"
    save_bench_plot(str(path), "shards", rows, windows(*trainer))
    assert path.read_text().startswith("<?xml")
