"""The report of `bench`: medians with their spread, the setting to take, a table and a plot."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lightning_shards.errors import ConfigError
from lightning_shards.profiling.plot import save_figure
from lightning_shards.profiling.rates import Throughput
from lightning_shards.tools.console import table

if TYPE_CHECKING:
    from lightning_shards.profiling.measuring import Measurement
    from lightning_shards.tools.bench_settings import Setting

GOOD_ENOUGH = 0.95
"""A cheaper setting is taken from this share of the best rate on: runs differ by as much."""

HOPEFUL = 0.5
"""A setting that is measured again has this share of the best rate so far."""

IMPOSSIBLE = 1.25
"""A fit that is this many times faster than its trainer alone was not measured alike."""

NOISY = 1.5
"""Runs of one setting of which one has this many times the rate of another prove little."""

FAR_APART = 5
"""Rates are drawn in powers of ten if one is this many times another."""

REST = "rest"

Limit = Literal["trainer", "loader", "both", "unsure"]


class Spread(NamedTuple):
    """Samples per second of repeated runs."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:,.0f} ({self.least:,.0f} to {self.most:,.0f})"


@dataclass
class Runs:
    """The runs with one setting.

    Attributes:
        setting: Where batches were made.
        is_configured: Whether this is the setting of the configuration.
        loader: Runs of the loader alone.
        both: Runs of the fit.
        refused: Reason why the setting cannot be used; None if it can.
    """

    setting: "Setting"
    is_configured: bool = False
    loader: list["Measurement"] = field(default_factory=list["Measurement"])
    both: list["Measurement"] = field(default_factory=list["Measurement"])
    refused: str | None = None

    @property
    def name(self) -> str:
        """The setting, with a star if it is the configured one."""
        return f"{self.setting.name}{' *' * self.is_configured}"

    @property
    def judged(self) -> float:
        """Median rate of the fit, or of the loader if there is no fit."""
        return spread_of(self.both or self.loader).median

    @property
    def waited(self) -> float:
        """Median share of the fit's time that the trainer waited for data."""
        return statistics.median(_throughput(window).wait_fraction for window in self.both)

    def stage_shares(self) -> dict[str, float]:
        """Each stage's share of the workers' seconds, loader alone; empty if unknown.

        The `rest` is bookkeeping and a stream's own stages.
        """
        total = sum(window.totals.produce_s for window in self.loader)
        if not total:
            return {}
        shares = {
            name: sum(window.stages[name] for window in self.loader) / total
            for name in self.loader[0].stages
        }
        return shares | {REST: max(0.0, 1 - sum(shares.values()))} if shares else {}


class Advice(NamedTuple):
    """The setting to take, what limits the rate there, and a sentence with the numbers."""

    runs: Runs
    limit: Limit
    sentence: str


def spread_of(windows: Sequence["Measurement"]) -> Spread:
    """Median, minimum and maximum of the rates of these runs."""
    rates = [_throughput(window).trained for window in windows]
    return Spread(statistics.median(rates), min(rates), max(rates))


def hopeful(rows: Sequence[Runs]) -> list[Runs]:
    """The settings that are worth another run: the configured one, and those that may be best."""
    tried = [runs for runs in rows if runs.refused is None]
    best = max((runs.judged for runs in tried), default=0.0)
    return [runs for runs in tried if runs.is_configured or runs.judged >= HOPEFUL * best]


def advise_settings(rows: Sequence[Runs], trainer: Sequence["Measurement"]) -> Advice:
    """The cheapest setting within 5 % of the best, and what limits it.

    Args:
        rows: The runs of all settings.
        trainer: Runs of the trainer alone; empty if there is none.

    Raises:
        ConfigError: None of the settings can be used.
    """
    allowed = [runs for runs in rows if runs.refused is None]
    if not allowed:
        raise ConfigError(f"no setting can be run: {rows[0].name}: {rows[0].refused}")
    best = max(allowed, key=lambda runs: runs.judged)
    enough = [runs for runs in allowed if runs.judged >= GOOD_ENOUGH * best.judged]
    chosen = min(enough, key=lambda runs: runs.setting.cost)
    rate, name = f"{chosen.judged:,.0f} samples/s", chosen.setting.name
    if chosen is best:
        why = f"{name} is the best: {rate}"
    else:
        why = (
            f"{name} is the cheapest within 5 % of the best: {rate} against {best.judged:,.0f} "
            f"with {best.setting.name}"
        )
    if not trainer:
        return Advice(chosen, "loader", why)
    alone, loader = spread_of(trainer).median, spread_of(chosen.loader).median
    if doubt := _doubt(chosen, trainer):
        return Advice(chosen, "unsure", f"unsure: {doubt}; perhaps {why}")
    if chosen.judged >= GOOD_ENOUGH**2 * alone:  # 5 % for the cheaper setting, 5 % for the fit
        said = f"the trainer is the limit: it takes {alone:,.0f} samples/s alone; {why}"
        return Advice(chosen, "trainer", f"{said}; a faster loader changes nothing")
    if loader < alone:
        said = f"the loader is the limit: {loader:,.0f} samples/s alone, the trainer could take "
        return Advice(chosen, "loader", f"{said}{alone:,.0f}; {why}{_largest_stage(chosen)}")
    said = f"each alone is faster (trainer {alone:,.0f} samples/s, loader {loader:,.0f})"
    return Advice(chosen, "both", f"{said}, together they share the cores; {why}")


def _doubt(chosen: Runs, trainer: Sequence["Measurement"]) -> str:
    """The reason why these runs prove little, with a remedy; empty if they do."""
    remedy = "measure again where nothing else runs, with more --seconds"
    alone, both = spread_of(trainer), spread_of(chosen.both)
    if both.median > IMPOSSIBLE * alone.median:
        return (
            f"the fit took {both.median:,.0f} samples/s, and the trainer alone only "
            f"{alone.median:,.0f}, so something held the trainer alone up; {remedy}, or with "
            "OMP_NUM_THREADS=1"
        )
    spread = max(runs.most / max(runs.least, 1e-9) for runs in (alone, both))
    if spread > NOISY:
        return f"runs that should be equal differ {spread:.1f} times; {remedy}"
    return ""


def _largest_stage(runs: Runs) -> str:
    shares = {name: share for name, share in runs.stage_shares().items() if name != REST}
    if not shares:
        return ""
    stage, share = max(shares.items(), key=lambda item: item[1])
    return f"; {share:.0%} of its work is {stage}"


def command_line(setting: "Setting") -> str:
    """The command-line options for this setting."""
    if setting.pool in ("inline", "own"):
        return f"--data.num_workers={max(setting.num_workers, 0)}"
    pool = f"--data.num_workers={setting.num_workers} --data.loader.pool={setting.pool}"
    if setting.pool == "threads":
        return pool
    return f"{pool} --data.loader.threads_per_worker={setting.threads_per_worker}"


def as_text(heading: str, rows: Sequence[Runs], trainer: Sequence["Measurement"]) -> str:
    """The table, with refused settings and the reasons below it."""
    allowed = [runs for runs in rows if runs.refused is None]
    stages = list(allowed[0].stage_shares()) if allowed else []
    titles = ["workers", "loader alone", *(["both", "waited"] if trainer else []), *stages]
    cells = [titles]
    for runs in allowed:
        both = [str(spread_of(runs.both)), f"{runs.waited:.0%}"] if trainer else []
        shares = [f"{share:.0%}" for share in runs.stage_shares().values()]
        cells.append([runs.name, str(spread_of(runs.loader)), *both, *shares])
    lines = [heading]
    if trainer:
        lines.append(f"trainer alone: {spread_of(trainer)} samples/s")
    lines += ["", table(cells)]
    lines += [f"{runs.name}: refused: {runs.refused}" for runs in rows if runs.refused is not None]
    advice = advise_settings(rows, trainer)
    lines += ["", advice.sentence, f"to set it: {command_line(advice.runs.setting)}"]
    return "\n".join(lines)


def as_document(
    about: Mapping[str, Any], rows: Sequence[Runs], trainer: Sequence["Measurement"]
) -> dict[str, Any]:
    """The report in plain values for programs; rates are samples per second."""
    advice = advise_settings(rows, trainer)
    return {
        **about,
        "trainer": _rates(trainer),
        "settings": [_row(runs) for runs in rows],
        "recommended": {
            **_setting(advice.runs.setting),
            "limit": advice.limit,
            "sentence": advice.sentence,
        },
    }


def save_bench_plot(
    path: str, heading: str, rows: Sequence[Runs], trainer: Sequence["Measurement"]
) -> None:
    """Draw the rates of all settings with error bars, and the trainer alone as a band."""
    from matplotlib.figure import Figure

    allowed = [runs for runs in rows if runs.refused is None]
    figure: Any = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    positions = range(len(allowed))
    levels: list[float] = []
    series = {"loader alone": [spread_of(runs.loader) for runs in allowed]}
    if trainer:
        series["both"] = [spread_of(runs.both) for runs in allowed]
        alone = spread_of(trainer)
        levels.append(alone.median)
        axes.axhspan(alone.least, alone.most, alpha=0.25, color="gray")
        axes.axhline(alone.median, color="gray", label="trainer alone")
    for label, spreads in series.items():
        medians = [spread.median for spread in spreads]
        below = [spread.median - spread.least for spread in spreads]
        above = [spread.most - spread.median for spread in spreads]
        axes.errorbar(positions, medians, (below, above), fmt="o", capsize=4, label=label)
    axes.set_xticks(positions, [runs.name for runs in allowed], rotation=30, ha="right")
    _show_all(axes, [each.median for spreads in series.values() for each in spreads] + levels)
    axes.set_title(heading, fontsize="small", wrap=True)
    axes.legend()
    save_figure(figure, path)


def _show_all(axes: Any, rates: Sequence[float]) -> None:
    """From 0 on, or in powers of ten where the lower rates would else lie in the axis."""
    if max(rates) > FAR_APART * min(rates) > 0:
        axes.set(ylabel="samples/s (logarithmic)", yscale="log")
    else:
        axes.set(ylabel="samples/s", ylim=(0, None))


def _throughput(window: "Measurement") -> Throughput:
    return Throughput(window.totals, num_workers=1, world_size=1)


def _rates(windows: Sequence["Measurement"]) -> dict[str, Any] | None:
    if not windows:
        return None
    runs = [_throughput(window).trained for window in windows]
    return {**spread_of(windows)._asdict(), "runs": runs}


def _setting(setting: "Setting") -> dict[str, Any]:
    return {name: getattr(setting, name) for name in ("pool", "num_workers", "threads_per_worker")}


def _row(runs: Runs) -> dict[str, Any]:
    is_allowed = runs.refused is None
    return {
        **_setting(runs.setting),
        "is_configured": runs.is_configured,
        "refused": runs.refused,
        "loader": _rates(runs.loader) if is_allowed else None,
        "both": _rates(runs.both) if is_allowed else None,
        "wait_fraction": runs.waited if runs.both and is_allowed else None,
        "stages": runs.stage_shares() if is_allowed else {},
    }
