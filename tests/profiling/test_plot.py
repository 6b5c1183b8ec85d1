"""The picture of a run, and the windows it is made of."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from lightning_shards import DataThroughputMonitor
from lightning_shards.errors import ConfigError
from lightning_shards.profiling.plot import History, save_plot
from lightning_shards.profiling.rates import TimeTotals


def window(number: int) -> TimeTotals:
    return TimeTotals(batches=2, samples=number, wall_s=1, wait_s=0.5)


@pytest.mark.parametrize("added", [0, 1, 7, 8, 9, 15, 16, 17, 1000, 12_345])
def test_a_history_of_any_length_is_bounded_and_loses_nothing(added: int) -> None:
    history = History(capacity=8)
    for number in range(added):
        history.add(window(number))
        assert len(history.windows) <= 8
    assert sum(each.batches for each in history.windows) == 2 * added
    assert sum(each.samples for each in history.windows) == sum(range(added))
    assert len(history.windows) >= min(added, 4)


def test_windows_of_a_long_history_are_equally_long_and_in_order() -> None:
    history = History(capacity=8)
    for number in range(100):
        history.add(window(number))
    *whole, rest = [each.batches for each in history.windows]
    assert set(whole) == {32}
    assert rest == 200 - sum(whole)
    samples = [each.samples / each.batches for each in history.windows]
    assert samples == sorted(samples)


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_a_plot_is_saved_in_the_format_of_its_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "made" / f"wait{suffix}"
    save_plot(str(path), [window(number) for number in range(3)])
    start = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(start)


def test_link_in_the_place_of_a_plot_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("years of work")
    (tmp_path / "wait.png").symlink_to(tmp_path / "precious")
    save_plot(str(tmp_path / "wait.png"), [window(1)])
    assert (tmp_path / "precious").read_text() == "years of work"


def test_a_plot_shows_steps_and_waits_in_milliseconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Any] = {}
    stairs = Axes.stairs

    def noted(axes: Any, values: Any, edges: Any, **options: Any) -> Any:
        drawn[options["label"]] = (list(values), list(edges))
        return stairs(axes, values, edges, **options)

    monkeypatch.setattr(Axes, "stairs", noted)
    windows = [TimeTotals(4, 8, 2.0, 1.0), TimeTotals(1, 2, 0.1, 0.02)]
    save_plot(str(tmp_path / "wait.png"), windows)
    assert drawn == {
        "step": (pytest.approx([500, 100]), [0, 4, 5]),
        "of it, waiting for data": (pytest.approx([250, 20]), [0, 4, 5]),
    }


def test_more_waiting_makes_another_picture(tmp_path: Path) -> None:
    pictures = []
    for wait_s in (0.1, 0.9):
        save_plot(str(tmp_path / "wait.png"), [TimeTotals(4, 8, 2.0, wait_s)])
        pictures.append(np.asarray(Image.open(tmp_path / "wait.png").convert("L")))
    assert pictures[0].shape == pictures[1].shape
    assert (pictures[0] != pictures[1]).mean() > 0.05


def test_a_missing_matplotlib_is_an_error_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find_spec(name)
    )
    DataThroughputMonitor()
    remedy = re.escape('pip install "lightning-shards[plot]"')
    with pytest.raises(ConfigError, match=f"plot='wait.png' needs matplotlib.*{remedy}"):
        DataThroughputMonitor(plot="wait.png")


@pytest.mark.parametrize("path", ["wait", "wait.jpeg", "", "folder/"])
def test_a_plot_in_another_format_is_an_error_before_the_run(path: str) -> None:
    with pytest.raises(ConfigError, match=r"must be a file that ends in one of .*\.png"):
        DataThroughputMonitor(plot=path)
