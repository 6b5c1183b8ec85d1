"""Bugs in what prepares data: packing, writing, indexing, verifying."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "shards.writing.tar_writer:TarWriter.write",
        "if field in written:",
        "if False:",
        "shards/writing/test_writer.py",
    ),
    Mutant(
        "shards.writing.tar_writer:member_header",
        "and name.isascii():",
        "and True:",
        "shards/writing/test_writer.py",
    ),
    Mutant(
        "shards.writing.journal:Journal.written",
        "or status.st_size != shard.size_bytes:",
        "or False:",
        "shards/writing/test_journal.py",
    ),
    Mutant(
        "shards.writing.packing:assign",
        "words[numbers, _KEEP_WORD]",
        "words[numbers, _ORDER_WORD]",
        "shards/writing/test_golden_orders.py",
    ),
    Mutant(
        "shards.writing.packing:_cut",
        "cuts.append(max(stop, start + 1))",
        "cuts.append(stop + 1)",
        "shards/writing/test_packing.py",
    ),
    Mutant(
        "shards.writing.packing:_in_order",
        "(words[:, _SPLIT_WORD], words[:, _ORDER_WORD])",
        "(words[:, _ORDER_WORD], words[:, _SPLIT_WORD])",
        "shards/writing/test_golden_orders.py",
    ),
    Mutant(
        "shards.writing.packing:_split",
        "words[numbers, _SPLIT_WORD]",
        "words[numbers, _ORDER_WORD]",
        "shards/writing/test_golden_orders.py",
    ),
    Mutant(
        "shards.writing.rewriting:Edit.__call__",
        "if new in edited:",
        "if False:",
        "tools/test_reshard.py",
    ),
    Mutant(
        "shards.writing.rewriting:_finish",
        "shards.sort(key=lambda shard: (len(shard.name), shard.name))",
        "shards.reverse()",
        "tools/test_reshard.py tools/packing/test_pack_folders.py",
    ),
    Mutant(
        "shards.inspection.check:_changed_members",
        "known.crc32 != table.crc32",
        "known.crc32 < 0",
        "tools/test_verify.py",
    ),
    Mutant(
        "shards.inspection.check:_differences",
        "entry[name] != fact",
        "False",
        "tools/test_verify.py",
    ),
    Mutant(
        "shards.inspection.check:_missing",
        "and not os.path.isfile(path)",
        "and False",
        "tools/test_verify.py",
    ),
    Mutant(
        "pipeline.replay:_stream_rows",
        "divmod(step, num_workers)",
        "(step // num_workers, 0)",
        "tools/trace/test_trace.py tools/trace/test_trace_samples.py",
    ),
    Mutant(
        "shards.atomic:_publish",
        "os.fsync(file.fileno())",
        "pass",
        "shards/test_atomic.py",
    ),
    Mutant(
        "shards.atomic:_publish",
        "        os.fsync(file.fileno())  # or a power cut leaves the name without the contents\n"
        "        part.replace(path)\n",
        "        part.replace(path)\n        os.fsync(file.fileno())\n",
        "shards/test_atomic.py",
    ),
    Mutant(
        "shards.atomic:_is_at",
        "os.path.samestat(path.lstat(), os.fstat(file.fileno()))",
        "True",
        "shards/test_atomic.py",
    ),
    Mutant(
        "shards.atomic:_new_part",
        '"xb"',
        '"wb"',
        "shards/test_atomic.py",
    ),
    Mutant(
        "shards.atomic:_remove_if_left",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "shards/test_atomic.py",
    ),
    Mutant(
        "shards.atomic:refuse_link",
        "if path.is_symlink():",
        "if False:",
        "shards/test_planted_indexes.py shards/test_atomic.py shards/writing/test_journal.py",
    ),
]
