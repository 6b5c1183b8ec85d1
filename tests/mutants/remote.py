"""Bugs in what fetches remote objects: retries, versions, ranges, redirects, secrets."""

from tests.mutants.planting import Mutant

FAULTS = "shards/remote/test_faults.py"
HTTP = "shards/remote/test_http.py"
HUB = "shards/remote/test_hub.py"
READER = "shards/remote/test_remote_reader.py"
CACHE = "shards/remote/test_remote_cache.py"
RETRIES = "shards/remote/test_retries.py"
STORAGE = "shards/remote/test_remote_storage.py"
FETCHER = "shards/remote/fetching/test_fetcher.py shards/remote/fetching/test_fetcher_ends.py"
THREADS = "shards/remote/fetching/test_fetch_threads.py"

DRIPPING = "shards/remote/test_dripping_servers.py"

MUTANTS = [
    Mutant(
        "shards.remote.answers.timed_response:TimedResponse.__init__",
        "self._file.allow(limit_s)",
        "pass",
        DRIPPING,
    ),
    Mutant(
        "shards.remote.answers.timed_response:TimedResponse.shortly",
        "with self.in_time(limit_s):",
        "if True:",
        DRIPPING,
    ),
    Mutant(
        "shards.remote.http:chunks_of",
        "timed.in_time() if timed else nullcontext()",
        "nullcontext()",
        DRIPPING,
    ),
    Mutant(
        "shards.storage.remote:RemoteStorage.read_ranges",
        "self._fetcher is None or len(wanted) < len(reads)",
        "True",
        CACHE,
    ),
    Mutant("shards.members:ShardReader.require_same", "now != self.table.stamp", "False", CACHE),
    Mutant("readers.ahead.fetch_ahead:FetchAhead.close", "self._end()", "", CACHE),
    Mutant(
        "readers.ahead.source_cache:size_of_run",
        'order.identity()["sampling"] == "sequential" or ',
        "",
        CACHE,
    ),
    Mutant(
        "shards.remote.partial_body:PartialBody._accept",
        "answer.version != self.version",
        "False",
        FAULTS,
    ),
    Mutant(
        "shards.remote.partial_body:PartialBody._accept",
        "if answer.begin != begin or ",
        "if ",
        FAULTS,
    ),
    Mutant(
        "shards.remote.partial_body:PartialBody._accept",
        "answer.size != self.size",
        "False",
        FAULTS,
    ),
    Mutant(
        "shards.remote.partial_body:PartialBody.restart_or_keep",
        "if not is_exact(self.version):",
        "if False:",
        FAULTS,
    ),
    Mutant(
        "shards.remote.partial_body:PartialBody._append",
        "if stop > answered_stop - self._begin:",
        "if stop > len(self.data):",
        HTTP,
    ),
    Mutant(
        "shards.remote.partial_body:Flow.count",
        "self._bytes < least * elapsed",
        "False",
        FAULTS,
    ),
    Mutant("shards.remote.backend:is_exact", "version.startswith('\"')", "True", FAULTS),
    Mutant("shards.remote.retries:Tries.go_on", "self.failed >= policy.tries or ", "", RETRIES),
    Mutant("shards.remote.retries:Tries.go_on", "- policy.stall_s", "", RETRIES),
    Mutant("shards.remote.retries:Tries.go_on", "if not is_first:", "if False:", RETRIES),
    Mutant(
        "shards.remote.retries:Tries._pause",
        "min(retry_after_s or 0.0, policy.longest_retry_after_s)",
        "retry_after_s or 0.0",
        RETRIES,
    ),
    Mutant(
        "shards.remote.connections:Connections.halve",
        "if began >= self._halved_at:",
        "if True:",
        RETRIES,
    ),
    Mutant(
        "shards.remote.http_client:HttpClient.request",
        "if _origin(following) != _origin(url):",
        "if False:",
        HTTP,
    ),
    Mutant(
        "shards.remote.http_client:HttpClient.request",
        "if len(redirects) > MAX_REDIRECTS:",
        "if len(redirects) > 2 * MAX_REDIRECTS:",
        HTTP,
    ),
    Mutant(
        "shards.remote.http_client:_redirected",
        'scheme in ("http", "https") and host',
        "True",
        HTTP,
    ),
    Mutant(
        "shards.remote.http_client:HttpClient.close",
        "_shut(connection)",
        "...",
        HTTP,
    ),
    Mutant(
        "shards.remote.http_client:_NotOurs.filter",
        'not getattr(_THREAD, "is_ours", False)',
        "True",
        "shards/remote/test_remote_secrets.py",
    ),
    Mutant(
        "shards.remote.http:_answer_of", "if begin and size > LARGEST_WHOLE:", "if False:", HTTP
    ),
    Mutant("shards.remote.http:_answer_of", "_require_no_page(first, reply, target)", "...", HTTP),
    Mutant(
        "shards.remote.http:_require_no_page",
        'text = f"{before}..." if sign else text',
        "...",
        "shards/remote/test_remote_secrets.py",
    ),
    Mutant("shards.remote.hub:HubBackend._known", "location.commit != pinned", "False", HUB),
    Mutant("shards.remote.hub:HubBackend._known", "if location.commit:", "if True:", HUB),
    Mutant("shards.remote.http:_whole_size", "_NUMBER", '".*"', HTTP),
    Mutant("shards.remote.hub:HubBackend._known", "location.until <= self._now()", "False", HUB),
    Mutant(
        "shards.remote.cloud:_require_own_process",
        "if _USED_BY[0] != os.getpid():",
        "if False:",
        "shards/remote/test_contract.py",
    ),
    Mutant(
        "shards.remote.transport:RemoteTransport.__reduce__",
        "RemoteTransport, (self._settings,)",
        "object.__reduce_ex__(self, 2)",
        "shards/remote/test_contract.py",
    ),
    Mutant(
        "shards.storage.remote:RemoteStorage._fetched",
        "(body.size, version_number(body.version)) != tuple(stat)",
        "False",
        "seams/test_storage.py seams/test_readers_of_storages.py",
    ),
    Mutant(
        "shards.storage.remote:RemoteStorage._fetched",
        "self._transport.read(url, start, stop, known)",
        "self._transport.read(url, start, stop)",
        STORAGE,
    ),
    Mutant(
        "shards.storage.remote:_parts",
        "if starts and not is_asked:",
        "if False:",
        "seams/test_storage.py " + STORAGE,
    ),
    Mutant(
        "shards.storage.request_threads:_Threads.put",
        "if not self._number:",
        "if False:",
        THREADS,
    ),
    Mutant(
        "shards.remote.fetching.fetch_threads:FetchThreads.run",
        "self._batches.remove(batch)",
        "pass",
        THREADS,
    ),
    Mutant(
        "shards.storage.request_threads:_Threads._work",
        "_refuse if self._is_closed else call",
        "call",
        STORAGE,
    ),
    Mutant(
        "shards.storage.request_threads:_Threads._start_one",
        ", daemon=True",
        "",
        STORAGE,
    ),
    Mutant(
        "shards.published.remote_tables:_published_table",
        "if table.file_size != stat.size:",
        "if False:",
        READER,
    ),
    Mutant(
        "shards.tables:TableStore.refresh",
        "if table is not None and table.crc32 is not None:",
        "if table is not None:",
        READER,
    ),
    Mutant(
        "shards.table_bytes:unpublished",
        "min(max(shard_bytes, _LEAST_SHARD), MAX_UNPACKED_BYTES)",
        "max(shard_bytes, _LEAST_SHARD)",
        "shards/tables/test_table_files.py",
    ),
    Mutant(
        "shards.table_bytes:unpublished",
        "if not unzip.eof or unzip.unused_data:",
        "if False:",
        READER,
    ),
    Mutant(
        "shards.members:ShardReader.expected",
        " and not self.storage.is_remote",
        "",
        READER,
    ),
    Mutant(
        "shards.tables:TableStore._is_current",
        "return expected in (None, table.num_samples)",
        "return True",
        READER,
    ),
    Mutant(
        "readers.reader_choice:ReaderChoice.find",
        "if is_prepared and is_remote else None",
        "if is_remote else None",
        READER,
    ),
    Mutant(
        "readers.reader_choice:ReaderChoice.of",
        "(remote and not index.has_tables)",
        "remote",
        READER,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._fetch_ahead",
        "piece in self._under_way or piece in self._there",
        "False",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._fetch_ahead",
        "elif opened.file is None:",
        "elif False:",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._fetch_ahead",
        "if opened is None:",
        "if False:",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher.announce",
        "if self._has_read.is_set():",
        "if True:",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._shared_out",
        "<= self._now() + exact_s",
        "> self._now() + exact_s",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._fetch_exactly",
        "memory.take_back()",
        "pass",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._fetch_exactly",
        "parts_of(begin, end)",
        "[(begin, end)]",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.segments:lengths_read",
        "max(0, min(stop, size) - start)",
        "stop - start",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.announced:AnnouncedPieces.of_object",
        "(url, version)",
        "(url, next(iter(self._by_object))[1])",
        "shards/remote/fetching/test_announced.py",
    ),
    Mutant(
        "shards.remote.fetching.open_pieces:OpenPieces._opened",
        "len(self._open) > _MOST_OPEN",
        "False",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.fetch_threads:FetchThreads._may_fetch_ahead",
        " and self._ahead < self._limit_ahead",
        "",
        THREADS,
    ),
    Mutant(
        "shards.remote.fetching.patience:Patience.is_worth_it",
        "> _TIMES_FASTER * rate",
        "< _TIMES_FASTER * rate",
        "shards/remote/fetching/test_patience.py",
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._fetch_ahead",
        "self._coming.discard(piece)\n            return",
        "return",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.fetch_threads:FetchThreads.limit_soon",
        "self._wake(min(len(self._soon), more))",
        "pass",
        THREADS,
    ),
    Mutant(
        "shards.remote.fetching.fetch_threads:FetchThreads._work",
        "self._batches[0] if self._batches else None",
        "self._batches[0] if self._batches and not self._soon else None",
        THREADS,
    ),
    Mutant(
        "shards.remote.fetching.fetch_threads:FetchThreads.stop",
        "self._end(self._batches[0], _closed())",
        "self._end(self._batches[0], None)",
        THREADS,
    ),
    Mutant(
        "shards.remote.fetching.link_speed:LinkSpeed._latency_s",
        "min(tuple",
        "max(tuple",
        "shards/remote/fetching/test_link_speed.py",
    ),
    Mutant(
        "shards.remote.fetching.stamped_transport:StampedTransport.read",
        "if version not in (None, found):",
        "if False:",
        "shards/remote/fetching/test_stamped_transport.py",
    ),
    Mutant(
        "readers.ahead.piece_plan:PiecePlan._blocks",
        "numbers % processes != process",
        "numbers % processes == process",
        "readers/ahead/test_piece_plan.py",
    ),
    Mutant(
        "readers.ahead.piece_plan:PiecePlan._blocks",
        "if s % processes == process",
        "",
        "readers/ahead/test_piece_plan.py",
    ),
    Mutant(
        "readers.ahead.piece_plan:PiecePlan._batches",
        "self._check(list(pieces.stamps), checked)",
        "pass",
        "readers/ahead/test_piece_plan.py",
    ),
    Mutant(
        "shards.remote.fetching.fetch_threads:FetchThreads._run_for",
        "except BaseException",
        "except Exception",
        THREADS,
    ),
    Mutant(
        "readers.ahead.piece_plan:_bytes_of",
        "is_near &= following_begins - ends <= _NEAR",
        "pass",
        "readers/ahead/test_piece_plan.py",
    ),
    Mutant(
        "readers.ahead.piece_plan:_is_worth_it",
        " & is_whole_faster(sizes, size_of_sample, block.uses)",
        "",
        "readers/ahead/test_piece_plan.py",
    ),
    Mutant(
        "readers.ahead.fetch_ahead:FetchAhead._run",
        "self._is_closed or self._reached >= due",
        "True",
        "readers/ahead/test_fetch_ahead.py",
    ),
    Mutant(
        "shards.remote.cache.run_cache:cache_of_run",
        "pieces.remove_if_left()",
        "pass",
        "shards/remote/cache/test_run_cache.py",
    ),
    Mutant(
        "dataprep.inspection.survey:survey_shard",
        "replace_file(table_path, table)",
        "pass",
        READER,
    ),
    Mutant(
        "shards.remote.fetching.fetch_threads:FetchThreads.run",
        "wait_until(batch.ended, lambda: batch.is_done)",
        "batch.ended.wait_for(lambda: batch.is_done)",
        THREADS,
    ),
    Mutant("shards.remote.http_client:body_reader", "if not left:", "if not size:", HTTP),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher.announce",
        "self._there.update(kept)",
        "pass",
        FETCHER,
    ),
    Mutant(
        "shards.remote.cache.piece_files:is_sealed",
        "return has_size and status.st_mtime_ns == _seal_of_this_start()",
        "return has_size",
        "shards/remote/cache/test_piece_cache.py",
    ),
    Mutant(
        "readers.ahead.fetch_ahead:FetchAhead.reach",
        "if self._reached >= self._due or self._batches == _SECOND:",
        "if self._batches == _SECOND:",
        "readers/ahead/test_fetch_ahead.py",
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._look_again",
        "self._closed.wait(_LOOK_AGAIN_S)",
        "pass",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._has_room_for",
        "under_way + piece.size <= _MOST_AHEAD",
        "True",
        FETCHER,
    ),
    Mutant(
        "readers.ahead.remote_batches:ShardTables._until_answered",
        "if self._closed.wait(_PAUSE_S):",
        "if True:",
        "shards/remote/test_remote_cache.py",
    ),
    Mutant(
        "shards.storage.schemes:shared_out",
        "make.of_one_rank(ranks)",
        "make",
        READER,
    ),
]
