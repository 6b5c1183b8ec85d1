"""Bugs in what prepares data: packing, writing, indexing, verifying."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "dataprep.inspection.findings:finding_of",
        "isinstance(error, DamagedShardError)",
        "True",
        "tools/remote/test_outages.py",
    ),
    Mutant(
        "dataprep.inspection.check:repair_shard",
        "return finding_of(error, redact(url))",
        'return Salvage(None, 0, {"": str(error)})',
        "tools/remote/test_outages.py",
    ),
    Mutant(
        "dataprep.inspection.chosen_samples:ShardsToShow._has_table",
        "is_local(url) or self._tables.is_beside(url)",
        "is_local(url)",
        "tools/remote/test_remote_show.py",
    ),
    Mutant(
        "dataprep.inspection.chosen_samples:ShardsToShow.samples",
        "numbers[-1] + 1",
        "None",
        "tools/remote/test_remote_show.py",
    ),
    Mutant(
        "tools.show:_write_page",
        '"::".join(map(redact_pattern, options.urls))',
        '"::".join(options.urls)',
        "tools/remote/test_remote_show.py",
    ),
    Mutant(
        "dataprep.inspection.forward_tar:CountedReads.__call__",
        "self._note(offset + len(data))",
        "",
        "dataprep/inspection/test_progress_of_bytes.py",
    ),
    Mutant(
        "tools.console:status_of",
        "return REFUSED if failures else 0",
        "return 0",
        "tools/remote/test_outages.py",
    ),
    Mutant(
        "tools.show:_check",
        "options.html is not None and os.path.lexists(options.html)",
        "False",
        "tools/test_show.py",
    ),
    Mutant(
        "dataprep.inspection.thumbnails:make_thumbnail",
        "max(1, size // max(image.size))",
        "1",
        "tools/test_show.py",
    ),
    Mutant(
        "tools.console:printable",
        "ascii(letter)[1:-1]",
        "letter",
        "tools/test_show.py",
    ),
    Mutant(
        "dataprep.writing.tar_writer:TarWriter.write",
        "if field in written:",
        "if False:",
        "dataprep/writing/test_writer.py",
    ),
    Mutant(
        "dataprep.writing.tar_writer:member_header",
        "and name.isascii():",
        "and True:",
        "dataprep/writing/test_writer.py",
    ),
    Mutant(
        "dataprep.writing.journal:Journal.written",
        "or status.st_size != shard.size_bytes:",
        "or False:",
        "dataprep/writing/test_journal.py",
    ),
    Mutant(
        "dataprep.writing.packing:assign",
        "words[numbers, _KEEP_WORD]",
        "words[numbers, _ORDER_WORD]",
        "dataprep/writing/test_golden_orders.py",
    ),
    Mutant(
        "dataprep.writing.packing:_cut",
        "cuts.append(max(stop, start + 1))",
        "cuts.append(stop + 1)",
        "dataprep/writing/test_packing.py",
    ),
    Mutant(
        "dataprep.writing.packing:_in_order",
        "(words[:, _SPLIT_WORD], words[:, _ORDER_WORD])",
        "(words[:, _ORDER_WORD], words[:, _SPLIT_WORD])",
        "dataprep/writing/test_golden_orders.py",
    ),
    Mutant(
        "dataprep.writing.packing:_split",
        "words[numbers, _SPLIT_WORD]",
        "words[numbers, _ORDER_WORD]",
        "dataprep/writing/test_golden_orders.py",
    ),
    Mutant(
        "dataprep.writing.rewriting:Edit.__call__",
        "if new in edited:",
        "if False:",
        "tools/test_reshard.py",
    ),
    Mutant(
        "dataprep.writing.rewriting:_finish",
        "shards.sort(key=lambda shard: (len(shard.name), shard.name))",
        "shards.reverse()",
        "tools/test_reshard.py tools/packing/test_pack_folders.py",
    ),
    Mutant(
        "dataprep.writing.class_files:require_no_other_classes",
        "is_same = read_classes(str(folder)) == ClassNames(classes, str(path))",
        "is_same = True",
        "tools/packing/test_pack_classes.py",
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
        "dataprep.inspection.check:_missing",
        "and not os.path.isfile(path)",
        "and False",
        "tools/test_verify.py",
    ),
    Mutant(
        "readers.replay:read_again",
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
        "        if is_synced:\n"
        "            os.fsync(file.fileno())  # a power cut could leave a name without contents\n"
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
        "dataprep/indexes/test_planted_indexes.py shards/test_atomic.py "
        "dataprep/writing/test_journal.py",
    ),
    Mutant(
        "dataprep.inspection.remote_survey:RemoteScan._kept",
        "table.stamp != stat",
        "False",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.inspection.remote_survey:RemoteScan._kept",
        'record.get("stamp") != list(stat)',
        "False",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.inspection.remote_survey:RemoteScan._kept",
        "table.crc32 is None or",
        "False and",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.inspection.remote_survey:RemoteScan._scanned",
        "if shard_stat(url, self.storage) != stat:",
        "if False:",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.inspection.remote_survey:RemoteScan.__call__",
        "self._kept(url, stat) or",
        "",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.inspection.forward_tar:HeaderWindows.__call__",
        "if offset - start > _LEAST_SKIPPED:",
        "if False:",
        "dataprep/inspection/test_one_pass.py",
    ),
    Mutant(
        "dataprep.inspection.forward_tar:ForwardTar._read",
        "if len(self._data) < stop - start:",
        "if False:",
        "dataprep/inspection/test_one_pass.py",
    ),
    Mutant(
        "dataprep.inspection.one_pass:_Walk._members",
        "self._end = _padded(member.offset + member.size)",
        "pass",
        "dataprep/inspection/test_one_pass.py",
    ),
    Mutant(
        "dataprep.indexes.remote_index:ObjectsBeside.put",
        "if there == data:",
        "if False:",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.indexes.remote_index:_uploaded",
        "require_own_index(urls, files)",
        "pass",
        "dataprep/indexes/test_remote_index.py",
    ),
]
