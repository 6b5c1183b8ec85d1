"""Bugs in what users see of a mixture: its rows in `trace`, its figures, its errors."""

from tests.mutants.planting import Mutant

TRACE = "tools/trace/test_trace_mixtures.py"
MONITOR = "callbacks/test_throughput_mixtures.py"
SUBSTITUTES = "readers/mixtures/test_mixture_substitutes.py"
REMOTE = "shards/remote/test_remote_mixtures.py"
LINES = "build/test_mixture_lines.py"
PLAN = "tools/test_plan_mixture.py"

MUTANTS = [
    Mutant("build.mixture_lines:rounding_text", "weight * round_units % total", "weight", LINES),
    Mutant("tools.plan_mixture_text:_rounding_notes", "if rounded", "if not rounded", PLAN),
    Mutant(
        "build.sources:_find", "in_mixture or config.dataset_size", "config.dataset_size", REMOTE
    ),
    Mutant(
        "shards.index:ShardIndex.known_samples",
        " or self.key_tests is not None",
        "",
        REMOTE,
    ),
    Mutant(
        "readers.making.rows:EpochRows._stand_in",
        "len(tried) - 1",
        "self.settings.max_bad + 1",
        SUBSTITUTES,
    ),
    Mutant(
        "readers.source:SourceDescription.component_of",
        "bisect_right(ends, shard)",
        "bisect_right(ends, shard - 1)",
        TRACE,
    ),
    Mutant(
        "profiling.mixture_progress:MixtureProgress.metrics",
        "cursor.epoch * self.slots.epoch_samples + cursor.samples",
        "cursor.samples",
        MONITOR,
    ),
    Mutant(
        "profiling.mixture_progress:MixtureProgress.of",
        " or source.epochs.pinned",
        "",
        MONITOR,
    ),
    Mutant(
        "callbacks.throughput:DataThroughputMonitor._log",
        "loader.state_dict()",
        '{"epoch": 0, "samples": loader.times.samples}',
        MONITOR,
    ),
    Mutant(
        "config.splits:_in_all",
        " if all(name in part for part in parts)",
        "",
        "trainer/test_mixtures.py",
    ),
    Mutant(
        "build.mixtures:_samples_of",
        "require_samples(name, samples)",
        "pass",
        "build/test_mixtures.py",
    ),
]
