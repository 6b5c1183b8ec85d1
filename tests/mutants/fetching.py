"""Bugs in what is fetched ahead, by which threads, and in the pieces that are kept of it."""

from tests.mutants.planting import Mutant

CACHE = "shards/remote/test_remote_cache.py"
STORAGE = "shards/remote/test_remote_storage.py"
FETCHER = (
    "shards/remote/fetching/test_fetcher.py shards/remote/fetching/test_fetcher_ends.py "
    "shards/remote/fetching/test_fetcher_knows.py"
)
THREADS = "shards/remote/fetching/test_fetch_threads.py"

MUTANTS = [
    Mutant(
        "readers.ahead.fetch_ahead:FetchAhead.close",
        "self._end()",
        "",
        "readers/ahead/test_fetch_ahead.py",
    ),
    Mutant(
        "readers.ahead.source_cache:size_of_run",
        'order.identity()["sampling"] == "sequential" or ',
        "",
        CACHE,
    ),
    Mutant(
        "readers.ahead.source_cache:size_of_run",
        "prepared * nodes",
        "prepared",
        "readers/ahead/test_source_cache.py",
    ),
    Mutant(
        "readers.ahead.source_cache:_bytes_of",
        "if index.size_bytes is None:",
        "if index.size_bytes is None or folder.sidecar_of(url).exists():",
        "readers/ahead/test_source_cache.py",
    ),
    Mutant(
        "shards.remote.cache.run_cache:is_drawn_anew",
        " and not is_sample_the_unit(size_bytes, samples)",
        "",
        "readers/ahead/test_source_cache.py",
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
        "_refuse if is_closed else call",
        "call",
        STORAGE,
    ),
    Mutant(
        "shards.storage.request_threads:_Threads.close",
        "_settle(future, _refuse)",
        "pass",
        STORAGE,
    ),
    Mutant(
        "shards.storage.request_threads:_Threads._start_one",
        ", daemon=True",
        "",
        STORAGE,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._fetch_piece",
        "piece in self._under_way or piece in self._there",
        "False",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._fetch_piece",
        "elif opened.file is None:",
        "elif False:",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._fetch_piece",
        "if opened is None:",
        "if False:",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._loaded",
        "if opened is not None and opened.file is not None:",
        "if opened is not None:",
        FETCHER,
    ),
    Mutant(
        "shards.remote.partial_body:PartialBody._fill",
        "self.is_whole = self._arrived == len(self.data)",
        "self.is_whole = True",
        "shards/remote/test_spare_memory.py",
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher.fetch_ahead",
        "named | self._coming & begun",
        "named",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher.fetch_ahead",
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
        "len(self._open) > max(1, most)",
        "False",
        FETCHER,
    ),
    Mutant(
        "shards.remote.fetching.open_pieces:OpenPieces._opened",
        "share_of_files(len(_IN_USE))",
        "share_of_files(1)",
        "shards/remote/fetching/test_fetcher_ends.py",
    ),
    Mutant(
        "shards.remote.fetching.open_pieces:OpenPieces.close",
        "_IN_USE.discard(self)",
        "pass",
        "shards/remote/fetching/test_fetcher_ends.py",
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
        "shards.remote.fetching.process_fetcher:ProcessFetcher._fetch_piece",
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
        "shards.remote.fetching.link_speed:LinkSpeed.latency_s",
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
        "self._check(list(pieces.stamps))",
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
        "readers.ahead.fetch_ahead:FetchAhead._announced",
        "self._is_closed or self._reached >= self._due",
        "True",
        "readers/ahead/test_fetch_ahead.py",
    ),
    Mutant(
        "shards.remote.fetching.fetch_threads:FetchThreads.run",
        "wait_until(batch.ended, lambda: batch.is_done)",
        "batch.ended.wait_for(lambda: batch.is_done)",
        THREADS,
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher.fetch_ahead",
        "& named | set(kept)",
        "& named",
        FETCHER,
    ),
    Mutant(
        "readers.ahead.fetch_ahead:FetchAhead.reach",
        "if self._reached >= self._due or self._batches == _SECOND or is_lacking:",
        "if self._batches == _SECOND or is_lacking:",
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
        "readers.ahead.remote_batches:ShardTables._until_answered",
        "(StorageError, FileAccessError)",
        "StorageError",
        "shards/remote/test_remote_cache.py",
    ),
    Mutant(
        "shards.table_bytes:UnwrittenTables.put",
        "self._bytes > _MOST_UNWRITTEN",
        "False",
        "shards/tables/test_tables.py",
    ),
    Mutant(
        "shards.table_bytes:UnwrittenTables.get",
        "self._tables.move_to_end(sidecar)",
        "pass",
        "shards/tables/test_tables.py",
    ),
    Mutant(
        "build.sources:_storages",
        "job=job_name(ranks)",
        "job=''",
        "shards/remote/test_remote_cache.py",
    ),
    Mutant(
        "system.job_name:job_name",
        "has_others and ",
        "",
        "system/test_job_name.py",
    ),
    Mutant(
        "readers.ahead.source_cache:_data_of",
        "map(without_credentials, index.urls)",
        "url.rpartition('/')[2] for url in index.urls",
        "readers/ahead/test_source_cache.py",
    ),
    Mutant(
        "tools.cache:_as_text",
        "each.name.removeprefix(group_of(each.name))[:16]",
        "each.name[:16]",
        "shards/remote/test_cache_tool.py",
    ),
    Mutant(
        "tools.cache:_clear",
        "if refused is not None and not options.all_hosts:",
        "if refused is not None:",
        "shards/remote/test_cache_tool.py",
    ),
    Mutant(
        "shards.remote.fetching.open_pieces:OpenPieces.drop_unlike",
        "if is_read and memoryview(found) != part.into:",
        "if is_read and False:",
        "shards/remote/test_warm_cache.py",
    ),
    Mutant(
        "shards.remote.fetching.open_pieces:OpenPieces._drop",
        "opened.drop()",
        "pass",
        "shards/remote/test_warm_cache.py",
    ),
]
