"""A plugin of pytest, `-p leave_out_torch`: leaves out what needs torch, under a Python without it.

A folder, a module or a test that fails because torch, or a package that needs it, is not there is
skipped and counted; so is the test of a program that says so. Any other failure stays one.
"""

import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

MISSING = re.compile(r"No module named '(torch|torchmetrics|lightning|lightning_utilities)['.]")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Skip a folder or a module that cannot be collected without torch."""
    report = yield
    if skipped(report, "a module that needs torch"):
        report.call = None
        forget(collector.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Skip a test that asked for torch: by itself, by a fixture or by a program that it started."""
    report = yield
    skipped(report, "a test that needs torch")
    return report


def skipped(report: Any, reason: str) -> bool:
    """Whether it failed for want of torch: then it is one of a skip from now on.

    Equal reasons at an equal location are counted in one line of pytest's summary.
    """
    said = "\n".join([report.longreprtext, *(text for _, text in report.sections)])
    if not report.failed or not MISSING.search(said):
        return False
    report.outcome, report.longrepr = "skipped", (__file__, 0, reason)
    return True


def forget(path: Path) -> None:
    """Let a module be imported again, which pytest leaves half made when its import fails."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == str(path):
            del sys.modules[name]
