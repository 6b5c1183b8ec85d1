"""Bugs in columns from elsewhere: matching, keeping, and reading what is kept."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "readers.mixtures.indexed:MixtureSource._joined_shards",
        "component.index, first, name)",
        "component.index, first)",
        "readers/mixtures/test_joined_components.py",
    ),
    Mutant(
        "readers.joined.joined_fields:with_kinds",
        ").with_fitted_default(transforms)",
        ")",
        "readers/joined/test_joined_fields.py",
    ),
    Mutant(
        "shards.joins.building:_write_values",
        "num_values + len(given)",
        "num_values + len(values)",
        "shards/joins readers/joined",
    ),
    Mutant(
        "shards.joins.building:_different",
        "different = dict.fromkeys(values)",
        "return values, np.arange(len(values))",
        "shards/joins/test_kept_joins.py",
    ),
    Mutant(
        "shards.joins.building:_different",
        "len({(value[:_END], value[-_END:]) for value in values}) == len(values)",
        "values",
        "shards/joins/test_kept_joins.py",
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
    Mutant(
        "shards.joins.table_copies:linked_copies",
        "crc32_of(path) != checksum:",
        "False:",
        "shards/remote/test_joined_tables.py",
    ),
    Mutant(
        "shards.joins.table_copies:linked_copies",
        "fetch_copy(url, stat, storages, cache) != checksum",
        "not fetch_copy(url, stat, storages, cache)",
        "shards/remote/test_joined_tables.py",
    ),
    Mutant(
        "shards.joins.table_copies:fetch_copy",
        "storage.stat(url) != stat",
        "False",
        "shards/remote/test_joined_tables.py",
    ),
    Mutant(
        "shards.joins.building:_spill_keys",
        "enumerate(keys, start)",
        "enumerate(keys)",
        "shards/joins readers/joined",
    ),
    Mutant(
        "shards.joins.settings:shown_joins",
        "return redact_pattern(join)",
        "return join",
        "readers/mixtures/test_joined_components.py",
    ),
    Mutant(
        "readers.joined.joined_members:_Part.members",
        "self._firsts[ids[:, 0] - self.shards.start]",
        "self._firsts[ids[:, 0] * 0]",
        "readers/mixtures/test_joined_components.py",
    ),
    Mutant(
        "readers.mixtures.indexed:MixtureSource._fields_together",
        "others and any(component.joins for component in self.components)",
        "False",
        "readers/mixtures/test_joined_components.py",
    ),
    Mutant(
        "readers.mixtures.indexed:MixtureSource.identity",
        "joins |= joins_identity(component.joins, name)",
        "joins |= {}",
        "readers/mixtures/test_joined_components.py",
    ),
    Mutant(
        "config.mixtures:ComponentConfig.merged",
        "{**self.fields, **texts}",
        "self.fields",
        "readers/mixtures/test_joined_components.py",
    ),
    Mutant(
        "shards.joins.made_files:clear_made",
        "if force or not file.is_used",
        "if True",
        "tools/test_cache_made.py",
    ),
    Mutant(
        "shards.filters.key_tests:read_key_tests",
        "content_of_lists(lists.values())",
        "chosen.digest()",
        "shards/remote/test_remote_filters.py",
    ),
]
