"""Bugs in what writes indexes, cards and member tables."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "dataprep.indexes.cards:write_card",
        "_SURROGATE.search(shard)",
        "False",
        "tools/test_names_not_utf8.py",
    ),
    Mutant(
        "dataprep.indexes.energon:_write_database",
        "except sqlite3.Error as",
        "except sqlite3.InternalError as",
        "tools/test_names_not_utf8.py",
    ),
    Mutant(
        "dataprep.indexes.energon:_add_shard",
        "except UnicodeEncodeError as",
        "except UnicodeDecodeError as",
        "tools/test_names_not_utf8.py",
    ),
    Mutant(
        "dataprep.indexes.remote_index:ObjectsBeside.put",
        "if there == data:",
        "if False:",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.indexes.remote_index:_root_of",
        "/{urls[0][len(address) :]}",
        "/",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.indexes.remote_index:_uploaded",
        "require_own_index(urls, files)",
        "pass",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.indexes.wanted_files:_parts_of",
        "unescaped(name, url)",
        "name",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.indexes.wanted_files:_paths_of",
        "or is_strange",
        "",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.indexes.remote_index:_url_of",
        "escaped(path.relative_to(files.output).as_posix(), root)",
        "path.relative_to(files.output).as_posix()",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.indexes.indexing:_write_sizes",
        "if files.output is not None:",
        "if False:",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.indexes.wanted_files:IndexFiles.require_fit",
        'if "dali" in self.formats:',
        "if False:",
        "tools/test_index.py",
    ),
    Mutant(
        "dataprep.indexes.indexing:_write_energon_index",
        "table_now",
        "table_of",
        "tools/test_index_checksums.py",
    ),
    Mutant(
        "dataprep.indexes.earlier_files:_is_other",
        "if not parts and (",
        "if False and (",
        "dataprep/indexes/test_earlier_files.py",
    ),
    Mutant(
        "dataprep.indexes.earlier_files:_is_other",
        "if len(parts) > 1 and files.output is None and os.path.isfile(below):",
        "if False:",
        "dataprep/indexes/test_earlier_files.py",
    ),
    Mutant(
        "dataprep.indexes.earlier_files:wids_before",
        "if foreign is not None:",
        "if False:",
        "dataprep/indexes/test_earlier_files.py",
    ),
    Mutant(
        "dataprep.indexes.earlier_files:require_own_index",
        '"counts", others,',
        '"counts", [],',
        "dataprep/indexes/test_earlier_files.py",
    ),
    Mutant(
        "dataprep.indexes.earlier_files:require_own_index",
        '"lists", others,',
        '"lists", [],',
        "dataprep/indexes/test_earlier_files.py",
    ),
    Mutant(
        "dataprep.indexes.earlier_files:energon_before",
        "if foreign:",
        "if False:",
        "dataprep/indexes/test_earlier_files.py",
    ),
    Mutant(
        "dataprep.indexes.energon:write_energon",
        "_split_yaml(earlier)",
        "_split_yaml({})",
        "dataprep/indexes/test_earlier_files.py",
    ),
    Mutant(
        "dataprep.indexes.cards:_quoted",
        "letter.isprintable() or",
        "True or",
        "tools/test_index.py",
    ),
    Mutant(
        "dataprep.indexes.cards:listed_in_card",
        "map(json.loads, ",
        "map(str, ",
        "dataprep/indexes/test_earlier_files.py",
    ),
    Mutant(
        "dataprep.indexes.cards:listed_in_card",
        "_CARD.fullmatch(",
        "_CARD.search(",
        "dataprep/indexes/test_earlier_files.py",
    ),
    Mutant(
        "dataprep.writing.tar_writer:list_shards",
        "earlier = _entries_before(folder / WIDS)",
        "earlier: dict[str, dict[str, Any]] = {}",
        "tools/packing/test_pack_again.py",
    ),
    Mutant(
        "dataprep.writing.tar_writer:list_shards",
        "if (folder / name).exists()",
        "if name",
        "tools/packing/test_pack_again.py",
    ),
    Mutant(
        "dataprep.writing.tar_writer:list_shards",
        "not entry.items() <= entries.get(shard.name, {}).items()",
        "shard.name not in entries",
        "tools/packing/test_pack_again.py",
    ),
]
