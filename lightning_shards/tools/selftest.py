"""`lightning-shards selftest`: finds out whether this package works on this machine and device."""

import json
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightning_shards.tools.bench import quiet_lightning
from lightning_shards.tools.console import FAILED, require_large_enough, require_seconds, run_tool

if TYPE_CHECKING:
    from lightning_shards.tools.selftest_checks import CheckResult

_EPILOG: Final = """\
It packs a few megabytes of shards into a temporary folder and takes about a minute. A check whose
device is not here is skipped, and the output says so. The rates at the end are those of tiny data:
they can be compared with one another, but not with those of real training.

Several nodes find out in the same way whether they work together. Run this on each of them:

  torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
    -m lightning_shards selftest --num-nodes 2

Exit status: 0 no check failed, 1 a check failed, 2 not done."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = ArgumentParser(
        prog="lightning-shards selftest",
        description="Find out whether this package works on this machine and its device.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--device",
        choices=("auto", "cpu", "cuda", "mps"),
        default="auto",
        help="default: auto, which is cuda or mps (Apple) where there is one, else cpu",
    )
    add("--devices", type=int, default=1, metavar="N", help="ranks of each node; default: 1")
    add("--num-nodes", type=int, default=1, metavar="N", help="as given to torchrun; default: 1")
    add("--num-workers", type=int, default=2, metavar="N", help="of each loader; default: 2")
    add("--seconds", type=float, default=2.0, metavar="S", help="of each rate; default: 2")
    add("--json", action="store_true", help="print one JSON document")
    run_tool("selftest", _selftest, parser.parse_args(arguments))


def _selftest(options: Namespace) -> int:
    _check(options)
    from lightning_shards.collectives import gather
    from lightning_shards.tools import selftest_checks as checks
    from lightning_shards.tools.selftest_fits import FIT_CHECKS

    checks.require_launched(options.devices, options.num_nodes)
    with tempfile.TemporaryDirectory(prefix="lightning-shards-selftest-") as folder:
        subject = checks.pack_subject(
            Path(folder),
            options.device,
            devices=options.devices,
            num_nodes=options.num_nodes,
            num_workers=options.num_workers,
            seconds=options.seconds,
        )
        is_shown = checks.is_first_rank()
        if is_shown and not options.json:
            print(f"{checks.describe_machine()}, device {subject.device}")
        results: list[CheckResult] = []
        for name, check in (checks.CHECKS | FIT_CHECKS).items():
            with quiet_lightning(), checks.one_thread():
                result = checks.run_check(name, check, subject)
            results.append(result)
            if not options.json and (is_shown or result.outcome == "failed"):
                print(f"{result.outcome:<7}  {name}: {result.text}", flush=True)
        ranks: list[list[CheckResult]] = gather(results)
        results += [result for others in ranks[1:] for result in others if _is_failed(result)]
    if is_shown:
        _print_end(options, checks.describe_machine(), str(subject.device), results)
    return FAILED if any(map(_is_failed, results)) else 0


def _is_failed(result: "CheckResult") -> bool:
    return result.outcome == "failed"


def _check(options: Namespace) -> None:
    """Refuse options that cannot work, before any slow import."""
    require_seconds(options.seconds)
    require_large_enough(options, devices=1, num_nodes=1, num_workers=0)


def _print_end(
    options: Namespace, machine: str, device: str, results: "Sequence[CheckResult]"
) -> None:
    if options.json:
        rows = [result._asdict() for result in results]
        print(json.dumps({"machine": machine, "device": device, "checks": rows}))
        return
    counts = Counter(result.outcome for result in results)
    print(", ".join(f"{counts[name]} {name}" for name in ("passed", "skipped", "failed")))
