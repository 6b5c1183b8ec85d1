"""Whatever processes do, and whatever happens to files, every byte that is read is right."""

import os
import shutil
import tempfile
from pathlib import Path

from cached_bytes import FILE, bytes_of, disk_bytes, make_cache, make_need, piece_number
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

NUMBERS = st.integers(0, 24)
CACHES = st.integers(0, 2)
PIECES = st.builds(piece_number, NUMBERS, st.sampled_from(['"v"', '"w"']))


class Caches(RuleBasedStateMachine):
    """Three processes of a node, each a cache of its own, and the files that they share."""

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp())
        self.caches, self.limits = {}, {}
        self.open_pieces = []
        self.runs = 0

    @rule(number=CACHES, limit=st.integers(0, 9), working_set=st.integers(0, 4))
    def enter(self, number, limit, working_set):
        self.leave(number)
        self.runs += 1
        need = make_need(limit, working_set_bytes=working_set * FILE)
        self.caches[number] = make_cache(self.folder, need, f"run-{self.runs}")
        self.caches[number].open(piece_number(0))  # it enters the folder
        self.limits[number] = limit

    @rule(number=CACHES)
    def leave(self, number):
        if number in self.caches:
            self.caches.pop(number).close()
            self.limits.pop(number)

    @precondition(lambda self: self.caches)
    @rule(number=CACHES, in_writing=st.booleans())
    def kill(self, number, in_writing):
        if number in self.caches:
            os.close(self.caches.pop(number)._here()._registered)
            self.limits.pop(number)
            if in_writing:
                (self.folder / f"pieces/parts/{'a' * 64}-0-{self.runs}").write_bytes(b"half")

    @precondition(lambda self: self.caches)
    @rule(number=CACHES, piece=PIECES, is_held=st.booleans())
    def load(self, number, piece, is_held):
        cache = self.caches.get(number) or next(iter(self.caches.values()))
        bypassed = cache.counts.bypassed
        loaded = cache.load(piece, lambda: bytes_of(piece))
        assert loaded.read(piece.begin, piece.end) == bytes_of(piece)
        if is_held:
            self.open_pieces.append((piece, loaded))
        if loaded.file is not None and cache.counts.fetched and bypassed == cache.counts.bypassed:
            assert cache.open(piece) is not None

    @rule(piece=PIECES, size=st.integers(0, FILE))
    def tear(self, piece, size):
        """A power cut: some bytes never reached the disk, or all are zeros."""
        path = self.folder / "pieces" / piece.folder / piece.name
        if path.exists():
            torn = path.read_bytes()[:size]
            path.unlink()  # who has it open keeps what was there
            path.write_bytes(torn.ljust(FILE, b"\0") if size % 2 else torn)

    @rule(piece=PIECES)
    def remove(self, piece):
        (self.folder / "pieces" / piece.folder / piece.name).unlink(missing_ok=True)

    @invariant()
    def pieces_that_were_opened_keep_their_bytes(self):
        for piece, loaded in getattr(self, "open_pieces", []):
            assert loaded.read(piece.begin, piece.end) == bytes_of(piece)

    @invariant()
    def pieces_that_can_be_opened_are_right(self):
        for cache in list(getattr(self, "caches", {}).values())[:1]:
            for number in range(0, 25, 6):
                piece = piece_number(number)
                opened = cache.open(piece)
                assert opened is None or opened.read(piece.begin, piece.end) == bytes_of(piece)

    @invariant()
    def the_disk_holds_no_more_than_the_largest_limit(self):
        assert disk_bytes(self.folder) <= 9 * FILE + 4 if hasattr(self, "folder") else True

    def teardown(self):
        for number in list(getattr(self, "caches", {})):
            self.leave(number)
        if hasattr(self, "folder"):
            for _, loaded in self.open_pieces:
                loaded.close()
            shutil.rmtree(self.folder, ignore_errors=True)


Caches.TestCase.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
test_caches = Caches.TestCase
