"""Bugs in columns from elsewhere: matching, keeping, and reading what is kept."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "shards.joins.building:_write_values",
        "num_values + len(given)",
        "num_values + len(values)",
        "shards/joins readers/joined",
    ),
    Mutant(
        "shards.joins.building:_write_slots",
        'of_part[records["sample"] - start]',
        'of_part[records["sample"] % PART_RECORDS - 1]',
        "shards/joins",
    ),
    Mutant(
        "shards.joins.building:_in_order",
        'more[np.argsort(more["row"], kind="stable")]',
        "more",
        "shards/joins",
    ),
    Mutant(
        "shards.joins.parquet_table:_pieces",
        "min(decoded, _rows_in_bytes(file.metadata))",
        "_rows_in_bytes(file.metadata)",
        "shards/joins/test_kept_joins.py",
    ),
    Mutant(
        "shards.joins.matching:match",
        "is_row[1:] & is_row[:-1] & ~is_first[1:]",
        "is_row[1:] & is_row[:-1] & is_first[1:] & ~is_first[1:]",
        "shards/joins/test_refused_tables.py",
    ),
    Mutant(
        "shards.joins.kept_joins:KeptJoins._opened",
        "kept.require_whole()",
        "pass",
        "shards/joins/test_kept_joins.py",
    ),
    Mutant(
        "shards.joins.kept_joins:KeptJoins._alone",
        "locks.held(number, wait_s=inf)",
        "locks.held(number, wait_s=0.0)",
        "shards/joins/test_kept_joins.py",
    ),
    Mutant(
        "shards.joins.kept_joins:KeptJoins._alone",
        "shutil.rmtree(left, ignore_errors=True)",
        "pass",
        "shards/joins/test_kept_joins.py",
    ),
    Mutant(
        "shards.joins.table_files:_kept_crc32",
        '(facts.get("size"), facts.get("mtime_ns")) != stamp',
        'facts.get("size") != stamp[0]',
        "shards/joins/test_kept_joins.py",
    ),
    Mutant(
        "readers.joined.joined_members:_Part.require_same",
        "if tuple(self.kept[name].stamps[shard - self.shards.start].tolist()) != table.stamp:",
        "if False:",
        "shards/joins/test_kept_joins.py",
    ),
    Mutant(
        "readers.joined.joined_fields:_decoder",
        "if kind not in _OF_BYTES:",
        "if False:",
        "shards/joins/test_refused_tables.py",
    ),
    Mutant(
        "saved_state:_require_same_table",
        "if saved is not None:",
        "if False:",
        "shards/joins/test_kept_joins.py",
    ),
    Mutant(
        "config.module:DataConfig.split",
        'reader="indexed" if config.has_joins and config.reader == "auto" else config.reader',
        "reader=config.reader",
        "readers/joined",
    ),
]
