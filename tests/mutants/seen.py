"""Bugs in what users see of remote shards: figures, the plan, and the tool of the cache."""

from tests.mutants.planting import Mutant

STAGE = "shards/remote/test_fetch_stage.py"
REPORT = "profiling/test_network.py"
MONITOR = "callbacks/test_throughput_network.py"
UPKEEP = "shards/remote/cache/test_upkeep.py"
TOOL = "shards/remote/test_cache_tool.py"
NEEDS = "shards/remote/fetching/test_fetch_needs.py"

MUTANTS = [
    Mutant(
        "readers.ahead.fetch_meter:FetchMeter._measured",
        "totals.since(self._taken), totals",
        "totals, totals",
        STAGE,
    ),
    Mutant(
        "readers.ahead.fetch_meter:FetchMeter._measured",
        'stages["open"] - fetched.table_wait_s',
        'stages["open"] + fetched.table_wait_s',
        STAGE,
    ),
    Mutant("profiling.rates:in_lockstep", ", **sums", "", REPORT),
    Mutant(
        "profiling.rates:TimeTotals.stage_shares",
        'STAGES if self.is_fetched else [stage for stage in STAGES if stage != "fetch"]',
        "STAGES",
        MONITOR,
    ),
    Mutant(
        "callbacks.throughput:DataThroughputMonitor._fetched_in",
        ".since(self._fetched_before)",
        "",
        MONITOR,
    ),
    Mutant(
        "callbacks.throughput:DataThroughputMonitor._note_loaders",
        "self._all_times |= {",
        "self._all_times = {",
        MONITOR,
    ),
    Mutant("progress:fit_loaders", "list(combined.flattened)", "[]", MONITOR),
    Mutant(
        "shards.remote.cache.upkeep:clear_pieces",
        "not force and (alone is None or not alone.is_sure)",
        "False",
        UPKEEP,
    ),
    Mutant(
        "shards.remote.cache.upkeep:check_pieces",
        "Path(piece.path).unlink(missing_ok=True)",
        "pass",
        UPKEEP,
    ),
    Mutant(
        "shards.remote.cache.open_runs:OpenRuns.register",
        "None if is_first else self._read(run)",
        "None",
        UPKEEP,
    ),
    Mutant("readers.ahead.filling:_loaded", "room < 0", "False", TOOL),
    Mutant("readers.ahead.filling:_lasting_version", "if stamp[1] == run_number():", "if 0:", TOOL),
    Mutant("readers.ahead.filling:_is_kept", "if ended.is_set():", "if True:", TOOL),
    Mutant("tools.cache:_fill", "is_in_memory(cache.root)", "False", TOOL),
    Mutant(
        "shards.remote.fetching.fetch_needs:ReadData.num_pieces",
        "int(np.count_nonzero(inner % self.run))",
        "0",
        NEEDS,
    ),
    Mutant(
        "shards.remote.fetching.fetch_needs:suitable_run",
        "min(wanted, longest)",
        "wanted",
        NEEDS,
    ),
]
