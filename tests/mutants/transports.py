"""Bugs in the bytes of remote objects: connections, bodies, and stores of each provider."""

from tests.mutants.planting import Mutant

FAULTS = "shards/remote/test_faults.py"
HTTP = "shards/remote/test_http.py"
CLOSING = "shards/remote/test_closing.py"
HUB = "shards/remote/test_hub.py"
COMMITS = "shards/remote/test_hub_commits.py"
DRIPPING = "shards/remote/test_dripping_servers.py"
CREDENTIALS = "shards/remote/test_cloud_credentials.py"
OTHER = "shards/remote/test_other.py"
PROXIES = "shards/remote/test_proxies.py"

MUTANTS = [
    Mutant("shards.remote.other:_close", "client.close()", "...", OTHER),
    Mutant(
        "shards.remote.hub:_valid_s", "now = parsedate_to_datetime(", "parsedate_to_datetime(", HUB
    ),
    Mutant("shards.remote.hub:HubBackend._located", "if valid_s <= 0:", "if not valid_s:", HUB),
    Mutant(
        "shards.remote.http_client:HttpClient._send", "if self._is_closed:", "if False:", CLOSING
    ),
    Mutant(
        "shards.remote.http_client:HttpClient._response",
        "if self._is_closed:",
        "if False:",
        CLOSING,
    ),
    Mutant("shards.remote.cloud:CloudBackend._call", "if self._is_closed:", "if False:", CLOSING),
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
    Mutant("shards.remote.http:read_reply", "failure.what += reply.through", "...", PROXIES),
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
        "shards.remote.http:_received",
        "timed.in_time() if timed else nullcontext()",
        "nullcontext()",
        DRIPPING,
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
        'encoding="latin-1"',
        'encoding="utf-8"',
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
        CLOSING,
    ),
    Mutant(
        "shards.remote.http_client:_shut",
        'socket.shutdown(getattr(sock, "socket", sock), SHUT_RDWR)',
        "sock.shutdown(SHUT_RDWR)",
        CLOSING,
    ),
    Mutant(
        "shards.remote.transport:RemoteTransport._persist",
        "if opened.closed.is_set():",
        "if failure is not None and opened.closed.is_set():",
        CLOSING,
    ),
    Mutant(
        "shards.remote.transport:RemoteTransport._forward_once",
        "for chunk in forward.chunks(backend, self._settings.policy, self._now):\n"
        "                    if opened.closed.is_set():",
        "for chunk in forward.chunks(backend, self._settings.policy, self._now):\n"
        "                    if False:",
        CLOSING,
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
    Mutant("shards.remote.hub:HubBackend._asked", "if pinned != commit:", "if False:", COMMITS),
    Mutant("shards.remote.http:_whole_size", "_NUMBER", '".*"', HTTP),
    Mutant(
        "shards.remote.http_client:failure_of_http_error",
        'getattr(error.args[0], "reason", None) in _NO_TLS',
        "False",
        HTTP,
    ),
    Mutant("shards.remote.http:_range_reader", "if into is None:", "if False:", HTTP),
    Mutant(
        "shards.remote.http:_rest_in_parts", "if len(rest) == LARGEST_IN_PARTS:", "if False:", HTTP
    ),
    Mutant("shards.remote.http:_answer_of", "first += _rest_in_parts(response)", "...", HTTP),
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
        "shards.remote.http:_require_uncompressed",
        'response.headers.get("Content-Encoding", "").strip().lower() not in _AS_IT_IS',
        "False",
        HTTP,
    ),
    Mutant("shards.remote.http:_retry_after_s", "(then - now).total_seconds()", "0.0", HTTP),
    Mutant(
        "shards.remote.cloud:CloudBackend._call",
        """        else:
            self._has_had_credentials = True
""",
        "        else:\n",
        CREDENTIALS,
    ),
    Mutant("shards.remote.cloud:CloudBackend._make", "policy.longest_s(largest)", "9e4", DRIPPING),
    Mutant(
        "shards.remote.cloud:_require_own_process",
        "if _USED_BY[0] != os.getpid():",
        "if False:",
        "shards/remote/test_contract.py",
    ),
    Mutant("shards.remote.http_client:body_reader", "if not left:", "if not size:", HTTP),
]
