"""Bugs in what checks shards and repairs them."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "dataprep.inspection.repairs:repair_shard",
        "return finding_of(error, redact(url))",
        'return Salvage(None, 0, {"": str(error)})',
        "tools/remote/test_outages.py",
    ),
    Mutant(
        "dataprep.inspection.salvage:_why_apart",
        "if has_others:",
        "if False:",
        "tools/test_verify_joined.py",
    ),
    Mutant(
        "dataprep.inspection.salvage:_why_apart",
        "first.is_beside or run.is_beside",
        "False",
        "tools/test_verify_joined.py",
    ),
    Mutant(
        "dataprep.inspection.salvage:_find_incomplete",
        "run.fields.keys() not in inner",
        "False",
        "tools/test_verify_joined.py",
    ),
    Mutant(
        "dataprep.inspection.salvage:_readable_runs",
        " or suffix in runs[-1].fields",
        "",
        "tools/test_verify_joined.py",
    ),
    Mutant(
        "dataprep.inspection.salvage:_joined",
        "is_left_out(run.fields)",
        "False",
        "tools/test_verify_joined.py",
    ),
    Mutant(
        "dataprep.writing.listing:_list_tar",
        "key in ended or ",
        "",
        "tools/test_verify_joined.py",
    ),
    Mutant(
        "dataprep.inspection.findings:find_repeats",
        "before |= fields",
        "pass",
        "tools/test_verify_joined.py",
    ),
    Mutant(
        "dataprep.inspection.repairs:_require_place",
        "if times > 1:",
        "if False:",
        "tools/test_verify_folder.py",
    ),
    Mutant(
        "dataprep.inspection.repairs:_require_place",
        "path.resolve().parent for",
        "path.parent for",
        "tools/test_verify_folder.py",
    ),
    Mutant(
        "dataprep.inspection.repairs:_require_place",
        "os.path.lexists(target)",
        "target.exists()",
        "tools/test_verify_folder.py",
    ),
    Mutant(
        "dataprep.inspection.repairs:repair_place",
        "lock_output(file, folder)",
        "pass",
        "tools/test_verify_folder.py",
    ),
    Mutant(
        "dataprep.indexes.indexing:_write_sizes",
        "await_lock(held)",
        "pass",
        "dataprep/indexes/test_runs_side_by_side.py",
    ),
    Mutant(
        "dataprep.indexes.indexing:_write_wids",
        "await_lock(held)",
        "pass",
        "dataprep/indexes/test_runs_side_by_side.py",
    ),
    Mutant(
        "dataprep.inspection.repairs:_is_same",
        "if source is None or source == redact(url):",
        "if True:",
        "tools/test_verify_folder.py",
    ),
    Mutant(
        "dataprep.inspection.repairs:repair_shards",
        "_write_report(folder / _BEGUN, before, begun)",
        "pass",
        "tools/test_verify_folder.py",
    ),
    Mutant(
        "dataprep.inspection.repairs:_write_report",
        "**before, ",
        "",
        "tools/test_verify_folder.py",
    ),
    Mutant(
        "dataprep.inspection.listed_shards:known_table",
        "for table in (beside, kept)",
        "for table in (beside,)",
        "tools/remote/test_remote_verify.py",
    ),
    Mutant(
        "dataprep.inspection.listed_shards:known_table",
        "for table in (beside, kept)",
        "for table in (kept, beside)",
        "tools/remote/test_remote_verify.py",
    ),
    Mutant(
        "dataprep.inspection.listed_shards:known_table",
        "table.crc32 is None",
        "False",
        "tools/remote/test_remote_verify.py",
    ),
    Mutant(
        "dataprep.inspection.listed_shards:_table_beside",
        '[Finding("unusable table", str(error), redact(url))]',
        "[]",
        "tools/remote/test_remote_verify.py",
    ),
    Mutant(
        "dataprep.inspection.repairs:repair_shard",
        "known_table(url, cache, settings).table",
        "None",
        "tools/remote/test_remote_verify.py",
    ),
    Mutant(
        "shards.counts.count_files:_wids_claims",
        "replace(claim, md5=None) for",
        "claim for",
        "tools/remote/test_remote_verify.py",
    ),
    Mutant(
        "shards.counts.count_files:_wids_claims",
        "shard.size_bytes, shard.md5",
        "shard.size_bytes",
        "tools/remote/test_remote_verify.py",
    ),
    Mutant(
        "dataprep.inspection.check:_changed_members",
        "known.crc32 != table.crc32",
        "known.crc32 < 0",
        "tools/test_verify.py",
    ),
    Mutant(
        "dataprep.inspection.check:_differences",
        "entry[name] != fact",
        "False",
        "tools/test_verify.py",
    ),
    Mutant(
        "dataprep.inspection.listed_shards:missing_listed",
        "and not os.path.isfile(path)",
        "and False",
        "tools/test_verify.py",
    ),
]
