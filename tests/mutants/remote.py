"""Bugs in what fetches remote objects: retries, versions, ranges, redirects, secrets."""

from tests.mutants.planting import Mutant

FAULTS = "shards/remote/test_faults.py"
CLOSING = "shards/remote/test_closing.py"
PROVIDERS = "shards.remote.providers"
TOKEN = "shards/remote/test_hub_token.py"
COMMITS = "shards/remote/test_hub_commits.py"
READER = "shards/remote/test_remote_reader.py"
CACHE = "shards/remote/test_remote_cache.py"
RETRIES = "shards/remote/test_retries.py"
STORAGE = "shards/remote/test_remote_storage.py"
DRIPPING = "shards/remote/test_dripping_servers.py"
ENDPOINTS = "shards/remote/test_cloud_endpoints.py"
CREDENTIALS = "shards/remote/test_cloud_credentials.py"
CALLS = "shards/remote/test_bounded_calls.py"
PLANNED = "shards/remote/test_planned_mixtures.py"
OTHER = "shards/remote/test_other.py"
PROXIES = "shards/remote/test_proxies.py"
UNDATED = "shards/remote/test_undated.py"

MUTANTS = [
    Mutant("shards.storage.remote:_unpickled", "take_over_run_number(number)", "...", UNDATED),
    Mutant("shards.storage.remote:version_number", "if is_undated(version):", "if False:", UNDATED),
    Mutant(
        "shards.tables:TableStore.kept_table",
        " and is_of_another_run(kept.mtime_ns)",
        " and False",
        UNDATED,
    ),
    Mutant(
        "shards.tables:TableStore._is_kept",
        "return not is_of_another_run(sidecar.stat().st_mtime_ns)",
        "return bool(sidecar.stat())",
        UNDATED,
    ),
    Mutant(
        "shards.filters.kept_files:stamps_of",
        "is_other = not is_local(url)",
        "is_other = False",
        UNDATED,
    ),
    Mutant(
        "shards.index:shared_index", 'take_over_run_number(content["run_number"])', "...", UNDATED
    ),
    Mutant("shards.storage.schemes:_unpickled", "take_over_run_number(number)", "number", UNDATED),
    Mutant(PROVIDERS + ".undated:warn_of_undated", '_warned["here"] = True', "...", UNDATED),
    Mutant(
        "shards.remote.backend:version_of",
        'f"{_NO_DATE}, number {number}" if number',
        'f"number {number}" if number',
        UNDATED,
    ),
    Mutant(
        "shards.remote.backend:version_of",
        'f"{_NO_DATE}, number {number}" if number',
        "_NO_DATE if number",
        UNDATED,
    ),
    Mutant("shards.remote.transport:_Opened.backend", "if self.closed.is_set():", "if 0:", CLOSING),
    Mutant(
        "shards.remote.answers.bounded_calls:BoundedCalls.call",
        "if self._is_closed:  #",
        "if False:  #",
        CALLS,
    ),
    Mutant(PROVIDERS + ".proxies:proxy_of", ' or proxies.get("all", "")', "", PROXIES),
    Mutant(PROVIDERS + ".proxies:proxy_of", ' or proxy_bypass(f"{host}:{port}")', "", PROXIES),
    Mutant(PROVIDERS + ".proxies:proxy_of", "if _is_in_networks(", "if not url and (", PROXIES),
    Mutant(
        "shards.scheme_table:is_further",
        " or scheme in _NO_STORES",
        "",
        "shards/test_urls.py",
    ),
    Mutant(
        "shards.urls:_check_remote",
        'if scheme in SCHEMES or "://" in url else None',
        "",
        "shards/test_urls.py",
    ),
    Mutant(
        "shards.storage.schemes:Storages._known_scheme",
        "ANY_FURTHER if",
        "scheme if",
        "shards/remote/test_remote_reader.py",
    ),
    Mutant(
        "shards.storage.schemes:Storages.grouped",
        "groups[self._known_scheme(url)]",
        "groups[scheme_of(url)]",
        "seams/test_readers_of_storages.py",
    ),
    Mutant(
        "shards.storage.schemes:has_ranges",
        "row_of(scheme_of(url))",
        "SCHEMES.get(scheme_of(url))",
        "shards/remote/test_remote_reader.py",
    ),
    Mutant(
        "shards.urls:_require_whole_name",
        'if row.client == "http" and "#" in url:',
        "if False:",
        "shards/test_urls.py",
    ),
    Mutant(
        "shards.urls:_require_whole_name", ' and "?" in url', " and not url", "shards/test_urls.py"
    ),
    Mutant(
        "shards.remote.backend:version_of",
        "if etag is not None and is_exact(etag):",
        "if etag:",
        OTHER,
    ),
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
        "shards.remote.answers.bounded_calls:_outcome",
        "reports.get(timeout=limit_s)",
        "reports.get()",
        CALLS,
    ),
    Mutant("shards.remote.answers.bounded_calls:_Caller.__init__", "daemon=True", "", CALLS),
    Mutant(
        "shards.storage.remote:RemoteStorage.read_ranges",
        "self._fetcher is None or len(wanted) < len(reads)",
        "True",
        CACHE,
    ),
    Mutant("shards.members:ShardReader.require_same", "now != self.table.stamp", "False", CACHE),
    Mutant(
        "readers.ahead.source_cache:_read_of_block",
        "order.with_gaps(samples) if isinstance(order, KeptOrder) else samples",
        "samples",
        "readers/ahead/test_source_cache.py",
    ),
    Mutant("shards.remote.backend:is_exact", "version.startswith('\"')", "True", FAULTS),
    Mutant("shards.remote.retries:Tries.go_on", "self.failed >= policy.tries or ", "", RETRIES),
    Mutant("shards.remote.retries:Tries.go_on", "- policy.stall_s", "", RETRIES),
    Mutant("shards.remote.retries:Tries.go_on", "if not is_first:", "if False:", RETRIES),
    Mutant("shards.remote.retries:Tries._pause", "_LEAST_GROWTH * self._pause_s", "0.1", RETRIES),
    Mutant("shards.remote.retries:Tries._pause", "least = self._pause_s", "...", RETRIES),
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
    Mutant(PROVIDERS + ".hub_token:hub_token", "_VARIABLES", "reversed(_VARIABLES)", TOKEN),
    Mutant(
        PROVIDERS + ".hub_token:_sendable",
        "not _SENDABLE.fullmatch(token)",
        "False",
        TOKEN,
    ),
    Mutant(PROVIDERS + ".hub_token:_file", 'os.environ.get("HF_HOME") or ', "", TOKEN),
    Mutant(
        PROVIDERS + ".hub_commits:take_over_commits",
        "_pinned.setdefault(key, commit)",
        "_pinned[key] = commit",
        COMMITS,
    ),
    Mutant(PROVIDERS + ".hub_commits:_key", 'f"{endpoint} {revision}"', "revision", COMMITS),
    Mutant(
        "shards.storage.schemes:MakeRemoteStorage.__reduce__", "pinned_commits()", "{}", COMMITS
    ),
    Mutant("shards.index:shared_index", 'content["hub_commits"]', "{}", COMMITS),
    Mutant(
        "shards.storage.streaming:_opened",
        "_failed_with(stream) if is_of_reading else 0",
        "0",
        "samples/test_safety.py",
    ),
    Mutant("readers.ahead.filling:Filling._pieces", " and not is_local(url)", "", PLANNED),
    Mutant("readers.ahead.filling:Filling._pieces", "if piece in named:", "if False:", PLANNED),
    Mutant(
        "readers.ahead.source_cache:_samples_of_blocks",
        "_block_of(each) or WINDOW for",
        "WINDOW for",
        "readers/ahead/test_source_cache.py",
    ),
    Mutant("tools.plan_network:_parts", "if all(map(is_local, part.urls)):", "if False:", PLANNED),
    Mutant(
        PROVIDERS + ".cloud_errors:_failure_of_service",
        "if is_there:",
        "if True:",
        CREDENTIALS,
    ),
    Mutant(
        PROVIDERS + ".cloud_errors:_failure_of_service",
        'in ("again", "busy")',
        'in ("busy",)',
        CREDENTIALS,
    ),
    Mutant(
        PROVIDERS + ".cloud_endpoints:allows_http",
        "return allowed or ",
        "return ",
        ENDPOINTS,
    ),
    Mutant(
        PROVIDERS + ".cloud_endpoints:allows_http",
        "not _URL.fullmatch(endpoint)",
        "False",
        ENDPOINTS,
    ),
    Mutant(
        PROVIDERS + ".cloud_endpoints:allows_http",
        'if "endpoint" in options:',
        "if options:",
        ENDPOINTS,
    ),
    Mutant(
        PROVIDERS + ".cloud_errors:is_panic",
        "type(error).__name__ == _PANIC",
        "False",
        ENDPOINTS,
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
        "dataprep.inspection.survey:survey_shard",
        "replace_file(table_path, packed)",
        "pass",
        READER,
    ),
    Mutant(
        "shards.storage.schemes:shared_out",
        "make.of_one_rank(ranks)",
        "make",
        READER,
    ),
]
