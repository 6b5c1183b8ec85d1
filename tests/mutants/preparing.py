"""Bugs in what prepares data: indexing, inspecting, and the tools for it."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "shards.tar.compression:compression_of",
        "kind is None or is_tar_header(first)",
        "kind is None",
        "tools/packing/test_compressed.py",
    ),
    Mutant(
        "dataprep.inspection.check:_damage",
        " or compression_at(path):",
        ":",
        "tools/packing/test_compressed.py",
    ),
    Mutant(
        "dataprep.inspection.findings:finding_of",
        "isinstance(error, DamagedShardError)",
        "True",
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
        "dataprep.forward_tar:CountedReads.__call__",
        "self._note(offset + len(data))",
        "",
        "dataprep/inspection/test_progress_of_bytes.py",
    ),
    Mutant(
        "dataprep.inspection.thumbnails:make_thumbnail",
        "max(1, size // max(image.size))",
        "1",
        "tools/test_show.py",
    ),
    Mutant(
        "dataprep.inspection.contents:_layout_of",
        "except Exception:",
        "except ValueError:",
        "tools/test_show.py",
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
        "shards.atomic:left_part",
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
        "if facts is None:",
        "if True:",
        "dataprep/indexes/test_remote_index.py",
    ),
    Mutant(
        "dataprep.forward_tar:HeaderWindows.__call__",
        "if offset - start > _LEAST_SKIPPED:",
        "if False:",
        "dataprep/inspection/test_one_pass.py",
    ),
    Mutant(
        "dataprep.forward_tar:ForwardTar._read",
        "if len(self._data) < stop - start:",
        "if False:",
        "dataprep/inspection/test_one_pass.py",
    ),
    Mutant(
        "dataprep.inspection.one_pass:_Walk._members",
        "self._end = up_to_block(member.offset + member.size)",
        "pass",
        "dataprep/inspection/test_one_pass.py",
    ),
    Mutant(
        "shards.tar.walk:_other",
        "[header[345:500], header[:100]]",
        "[header[:100]]",
        "tools/packing/test_tars_of_others.py",
    ),
    Mutant(
        "shards.atomic:take_lock",
        "return not isinstance(error, BlockingIOError)",
        "return False",
        "dataprep/writing/test_journal.py",
    ),
    Mutant(
        "dataprep.input_files:InputFiles.__exit__",
        "if kind is None or issubclass(kind, ShardError):",
        "if False:",
        "dataprep/writing/test_changed_inputs.py",
    ),
    Mutant(
        "dataprep.input_files:InputFiles.read",
        "(OSError, MemoryError)",
        "OSError",
        "dataprep/writing/test_inputs.py",
    ),
    Mutant(
        "dataprep.inspection.contents:contents_of",
        "min(size, _MAX_BYTES)",
        "size",
        "tools/test_info.py",
    ),
    Mutant(
        "dataprep.input_files:InputFiles._file",
        "_require_listed(oldest, self._open[oldest])",
        "pass",
        "dataprep/writing/test_changed_inputs.py",
    ),
    Mutant(
        "dataprep.writing.rewriting:_edited",
        "files.require_unchanged()",
        "pass",
        "dataprep/writing/test_changed_inputs.py",
    ),
    Mutant(
        "dataprep.writing.plain_copies:_unpack",
        "if stamp_of(packed.fileno()) != stamp:",
        "if False:",
        "dataprep/writing/test_changed_inputs.py",
    ),
    Mutant(
        "dataprep.inspection.survey:survey_shard",
        "published(table)",
        "published(TableStore(shard.cache).table_of(shard.path))",
        "tools/test_index_checksums.py",
    ),
    Mutant(
        "shards.tables:TableStore._is_current",
        "and not self._with_crc32",
        "",
        "tools/test_index_checksums.py",
    ),
    Mutant(
        "shards.tables:TableStore._renew",
        "or old.stamp == table.stamp",
        "",
        "tools/test_index_checksums.py",
    ),
    Mutant(
        "shards.tables:_require_same_bytes",
        "if is_unchanged:",
        "if False:",
        "tools/test_index_checksums.py",
    ),
    Mutant(
        "dataprep.inspection.listed_shards:md5_of",
        "if is_same_size and status.st_mtime_ns < listed.written_ns:",
        "if False:",
        "tools/test_index_checksums.py",
    ),
    Mutant(
        "dataprep.inspection.listed_shards:md5_of",
        "if not is_wanted and is_untouched:",
        "if not is_wanted:",
        "tools/test_index_checksums.py",
    ),
]
