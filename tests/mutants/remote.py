"""Bugs in what fetches remote objects: retries, versions, ranges, redirects, secrets."""

from tests.mutants.planting import Mutant

FAULTS = "shards/remote/test_faults.py"
HTTP = "shards/remote/test_http.py"
HUB = "shards/remote/test_hub.py"
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
    Mutant("shards.remote.other:_close", "client.close()", "...", OTHER),
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
        "shards.index:kept_index", 'take_over_run_number(content["run_number"])', "...", UNDATED
    ),
    Mutant("shards.storage.schemes:_unpickled", "take_over_run_number(number)", "number", UNDATED),
    Mutant(PROVIDERS + ".undated:warn_of_undated", '_warned["here"] = True', "...", UNDATED),
    Mutant(
        "shards.remote.hub:_valid_s", "now = parsedate_to_datetime(", "parsedate_to_datetime(", HUB
    ),
    Mutant("shards.remote.hub:HubBackend._located", "if valid_s <= 0:", "if not valid_s:", HUB),
    Mutant("shards.remote.http_client:HttpClient._send", "if self._is_closed:", "if False:", HTTP),
    Mutant(
        "shards.remote.http_client:HttpClient._response", "if self._is_closed:", "if False:", HTTP
    ),
    Mutant("shards.remote.transport:_Opened.backend", "if self.closed.is_set():", "if 0:", HTTP),
    Mutant("shards.remote.cloud:CloudBackend._call", "if self._is_closed:", "if False:", HTTP),
    Mutant(
        "shards.remote.answers.bounded_calls:BoundedCalls.call",
        "if self._is_closed:  #",
        "if False:  #",
        CALLS,
    ),
    Mutant(
        "shards.remote.hub:HubBackend.refresh",
        "self._refused[url] = used.url",
        "self._refused[url] = self._locations[url].url",
        HUB,
    ),
    Mutant(
        "shards.remote.cloud:CloudBackend.refresh",
        "if self._stores.get(bucket) is used:",
        "if True:",
        "shards/remote/test_transport.py",
    ),
    Mutant(PROVIDERS + ".proxies:proxy_of", ' or proxies.get("all", "")', "", PROXIES),
    Mutant(PROVIDERS + ".proxies:proxy_of", ' or proxy_bypass(f"{host}:{port}")', "", PROXIES),
    Mutant(PROVIDERS + ".proxies:proxy_of", "if _is_in_networks(", "if not url and (", PROXIES),
    Mutant("shards.remote.http:read_reply", "failure.what += reply.through", "...", PROXIES),
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
        "shards.remote.other:_described",
        "files.invalidate_cache()",
        "files.invalidate_cache(path)",
        OTHER,
    ),
    Mutant("shards.remote.other:OtherBackend._tried", "self._mine.files.clear()", "...", OTHER),
    Mutant(
        "shards.remote.other:_failure_of", '"again" if has_answered else "final"', '"final"', OTHER
    ),
    Mutant(
        "shards.remote.other:OtherBackend._require_taken",
        "self._scheme not in _DROPS_OPTIONS",
        "True",
        OTHER,
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
        "shards.remote.http:chunks_of",
        "timed.in_time() if timed else nullcontext()",
        "nullcontext()",
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
    Mutant(
        "shards.remote.partial_body:PartialBody._arriving",
        "if answer.arrived is None else",
        "if True else",
        DRIPPING,
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
    Mutant(PROVIDERS + ".hub_token:hub_token", "_VARIABLES", "reversed(_VARIABLES)", TOKEN),
    Mutant(
        PROVIDERS + ".hub_token:_sendable",
        "not _SENDABLE.fullmatch(token)",
        "False",
        TOKEN,
    ),
    Mutant(PROVIDERS + ".hub_token:_file", 'os.environ.get("HF_HOME") or ', "", TOKEN),
    Mutant("shards.remote.hub:HubBackend._known", "if location.commit:", "if True:", HUB),
    Mutant("shards.remote.hub:HubBackend._asked", "if pinned != commit:", "if False:", COMMITS),
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
    Mutant("shards.index:kept_index", 'content["hub_commits"]', "{}", COMMITS),
    Mutant("shards.remote.http:_whole_size", "_NUMBER", '".*"', HTTP),
    Mutant(
        "shards.remote.hub:HubBackend._known",
        "not 0 < location.until - self._now() <= _KEPT_S",
        "False",
        HUB,
    ),
    Mutant(
        "shards.remote.cloud:CloudBackend._split",
        "not _KEY.fullmatch(key)",
        "False",
        "shards/remote/test_transport.py",
    ),
    Mutant(
        "shards.remote.http:_whole_size",
        'response.headers.get("Content-Encoding", "").strip().lower() not in _AS_IT_IS',
        "False",
        HTTP,
    ),
    Mutant("shards.remote.http:_retry_after_s", "(then - now).total_seconds()", "0.0", HTTP),
    Mutant(
        "shards.storage.streaming:_opened",
        "_failed_with(stream) if is_of_reading else 0",
        "0",
        "samples/test_safety.py",
    ),
    Mutant("readers.ahead.filling:Filling._pieces", " and not is_local(url)", "", PLANNED),
    Mutant("tools.plan_network:_parts", "if all(map(is_local, part.urls)):", "if False:", PLANNED),
    Mutant(
        "shards.remote.cloud:CloudBackend._call",
        """        else:
            self._has_had_credentials = True
""",
        "        else:\n",
        CREDENTIALS,
    ),
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
    Mutant("shards.remote.cloud:CloudBackend._make", "policy.longest_s(largest)", "9e4", DRIPPING),
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
    Mutant("shards.remote.http_client:body_reader", "if not left:", "if not size:", HTTP),
    Mutant(
        "shards.storage.schemes:shared_out",
        "make.of_one_rank(ranks)",
        "make",
        READER,
    ),
]
