"""Bugs in streams of remote shards, and in how much is read and asked for at once."""

from tests.mutants.planting import Mutant

STREAMS = "shards/remote/test_range_streams.py"
SHARD_STREAMS = "shards/remote/test_remote_streams.py"
TAR = "shards/tar/test_tar_stream.py"
FETCHER = "shards/remote/fetching/test_fetcher.py shards/remote/fetching/test_fetcher_knows.py"
AHEAD = "readers/ahead/test_remote_batches.py"

MUTANTS = [
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher.has_all",
        "bool(pieces) and ",
        "",
        FETCHER,
    ),
    Mutant(
        "readers.ahead.fetch_ahead:FetchAhead.most_batches",
        "bisect_right(steps, until[1], key=lambda step: epoch.span(step)[1])",
        "sys.maxsize",
        "readers/ahead/test_fetch_ahead.py",
    ),
    Mutant(
        "readers.ahead.fetch_ahead:FetchAhead.announcing",
        "self.reach(turn, epoch.span(step)[1] - 1)",
        "self.reach(turn, epoch.span(step)[0])",
        "readers/ahead/test_fetch_ahead.py",
    ),
    Mutant(
        "readers.ahead.read_ahead:ReadAhead._planned",
        "[self._stops > start][: self._buffer.most_batches()]",
        "[self._stops > start]",
        "readers/test_batch_reader.py",
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._piece",
        "self._link.pieces_bytes_per_s",
        "(self._link.bytes_per_s or 0)",
        "shards/remote/fetching/test_fetcher.py",
    ),
    Mutant(
        "shards.remote.fetching.link_speed:LinkSpeed.count",
        "if is_piece:",
        "if is_piece and size > _SMALL:",
        "shards/remote/fetching/test_fetcher.py",
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher.fetch_ahead",
        "self._kept(named - before, named & before)",
        "self._kept(named - before, ()) + [each for each in named if each in before]",
        "shards/remote/fetching/test_fetcher.py",
    ),
    Mutant(
        "system.file_locks:TakenLock.close",
        "_try_lock(self.file, self.number, fcntl.F_UNLCK)",
        "pass",
        "system/test_file_locks.py",
    ),
    Mutant(
        "readers.ahead.remote_batches:buffer_beside",
        "MOST_BYTES if storages.has_fetched_ahead() else _MOST_BYTES",
        "_MOST_BYTES",
        AHEAD,
    ),
    Mutant(
        "shards.storage.range_streams:_ForwardFile.__init__",
        "(is_sized_alone or not first.has_ranges)",
        "not first.has_ranges",
        STREAMS,
    ),
    Mutant(
        "shards.storage.range_streams:_ForwardFile.__init__",
        "first.version == version_of(None, None, first.size)",
        "not first.version.startswith('\"')",
        STREAMS,
    ),
    Mutant(
        "shards.storage.range_streams:_ForwardFile._begin",
        "self._first.version",
        "None",
        STREAMS,
    ),
    Mutant(
        "shards.storage.range_streams:_ForwardFile._begin",
        " and len(self._begun) < self._most",
        "",
        STREAMS,
    ),
    Mutant(
        "shards.storage.range_streams:_Line.leave",
        "if any(is_under_way):",
        "if False:",
        STREAMS,
    ),
    Mutant(
        "shards.storage.range_streams:RangeStreams.open",
        "self.counts.result_of(beginning)",
        "beginning.result()",
        STREAMS,
    ),
    Mutant(
        "shards.storage.range_streams:_ForwardFile.readinto",
        "self._counts.result_of(self._begun[0])",
        "self._begun[0].result()",
        STREAMS,
    ),
    Mutant(
        "shards.remote.transport:RemoteTransport.__copy__",
        "made._counters = self._counters",
        "",
        STREAMS,
    ),
    Mutant(
        "dataprep.indexes.index_files:index_from_file",
        "all(map(names_table, entries))",
        "any(map(names_table, entries))",
        "tools/test_plan.py",
    ),
    Mutant(
        "shards.storage.range_streams:RangeStreams.open",
        "copy(self._transport)",
        "self._transport",
        STREAMS,
    ),
    Mutant(
        "shards.remote.forward_body:ForwardBody._chunks",
        "if new and checksum != self._checksum:",
        "if False:",
        STREAMS,
    ),
    Mutant(
        "shards.remote.forward_body:ForwardBody._chunks",
        "if arrived < self._size:",
        "if False:",
        STREAMS,
    ),
    Mutant(
        "shards.remote.forward_body:_watched",
        "waited += now() - began",
        "waited = now()",
        STREAMS,
    ),
    Mutant(
        "readers.shard_samples:ReadSlices._read",
        "except DamagedShardError as error:",
        "except OSError as error:",
        SHARD_STREAMS,
    ),
    Mutant(
        "shards.tar.tar_stream:TarStream._require_whole",
        "if there < size:",
        "if False:",
        TAR,
    ),
    Mutant(
        "shards.tar.tar_stream:_reading",
        "if offset < begin",
        "if False",
        TAR,
    ),
    Mutant(
        "shards.tar.tar_stream:_reading",
        "if name is None:",
        "if False:",
        TAR,
    ),
    Mutant(
        "shards.tar.tar_stream:stream_samples",
        "offset <= last",
        "offset <= last + 512",
        TAR,
    ),
    Mutant(
        "readers.stream:StreamSource.batches",
        "with closing(Storages(storages_here)) as storages:",
        "for storages in [Storages(storages_here)]:",
        SHARD_STREAMS,
    ),
    Mutant(
        "readers.reader_choice:require_forkable",
        "if scheme is not None:",
        "if False:",
        SHARD_STREAMS,
    ),
    Mutant(
        "readers.ahead.known_pieces:KnownPieces.add",
        " and announcement.turn > self._first_turn",
        "",
        "readers/ahead/test_known_pieces.py",
    ),
    Mutant(
        "readers.ahead.known_pieces:KnownPieces.add",
        "number == len(self._names)",
        "True",
        "readers/ahead/test_known_pieces.py",
    ),
    Mutant(
        "readers.ahead.known_pieces:KnownPieces.are_kept",
        "self._looked_at % len(self.reads)",
        "0",
        "readers/ahead/test_known_pieces.py",
    ),
    Mutant(
        "readers.ahead.known_pieces:KnownPieces.add",
        "self.reads.clear()",
        "pass",
        "readers/ahead/test_known_pieces.py",
    ),
    Mutant(
        "readers.ahead.fetch_ahead:FetchAhead.reach",
        "self._due == _NEVER and self._storages.has_lacked()",
        "False",
        "readers/ahead/test_fetch_ahead.py",
    ),
    Mutant(
        "readers.ahead.fetch_ahead:FetchAhead._announce_known",
        "self._due, self._announced_until = _NEVER, None",
        "self._announced_until = None",
        "readers/ahead/test_fetch_ahead.py",
    ),
    Mutant(
        "readers.ahead.fetch_ahead:FetchAhead._announce_known",
        "self._announced_until = self._reached",
        "pass",
        "readers/ahead/test_fetch_ahead.py",
    ),
    Mutant(
        "readers.ahead.fetch_ahead:FetchAhead._announce_from",
        " and not self._has_lacked",
        "",
        "readers/ahead/test_fetch_ahead.py",
    ),
    Mutant(
        "readers.ahead.fetch_ahead:FetchAhead._announce_from",
        "self._known.announced_from(begin[0])",
        "pass",
        "readers/ahead/test_fetch_ahead.py",
    ),
    Mutant(
        "readers.ahead.piece_plan:PiecePlan._check",
        "self.checked.update(new)",
        "pass",
        "readers/ahead/test_piece_plan.py",
    ),
    Mutant(
        "readers.ahead.piece_plan:PiecePlan._batches",
        "if (turn, stop) <= begin:",
        "if False:",
        "readers/ahead/test_piece_plan.py",
    ),
    Mutant(
        "plan.pieces:pieces_ahead",
        "first = begin[1] if turn == begin[0] else 0",
        "first = 0",
        "plan/test_pieces.py",
    ),
    Mutant(
        "shards.remote.fetching.process_fetcher:ProcessFetcher._read",
        "self._lacking = known[-1] if known else None",
        "pass",
        FETCHER,
    ),
    Mutant(
        "readers.ahead.known_pieces:KnownPieces.add",
        "if not announcement.is_of_node:",
        "if False:",
        "readers/ahead/test_known_pieces.py",
    ),
    Mutant(
        "readers.ahead.known_pieces:KnownPieces.add",
        " and not announcement.rest",
        "",
        "readers/ahead/test_known_pieces.py",
    ),
    Mutant(
        "readers.ahead.fetch_ahead:FetchAhead._announced",
        "if self._storages.is_kept(each)",
        "if False",
        "readers/ahead/test_fetch_ahead.py",
    ),
    Mutant(
        "readers.ahead.piece_plan:PiecePlan._of_batches",
        "is_of_node=False",
        "is_of_node=True",
        "readers/ahead/test_piece_plan.py",
    ),
]
