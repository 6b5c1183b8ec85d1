"""Whatever processes do, and whatever happens to files, every byte that is read is right."""

import os
import shutil
import tempfile
from pathlib import Path

from cached_bytes import (
    FILE,
    bytes_in,
    bytes_of,
    disk_bytes,
    make_cache,
    make_need,
    piece_number,
)
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
        self.caches, self.opened, self.runs = {}, [], 0

    @rule(number=CACHES, limit=st.integers(0, 9), working_set=st.integers(0, 4))
    def enter(self, number, limit, working_set):
        self.leave(number)
        self.runs += 1
        need = make_need(limit, working_set_bytes=working_set * FILE)
        self.caches[number] = make_cache(self.folder, need, f"run-{self.runs}")
        self.caches[number].open(piece_number(0))  # it enters the folder

    @rule(number=CACHES)
    def leave(self, number):
        if number in self.caches:
            self.caches.pop(number).close()

    @precondition(lambda self: self.caches)
    @rule(number=CACHES, in_writing=st.booleans())
    def kill(self, number, in_writing):
        if number in self.caches:
            os.close(self.caches.pop(number)._entered)
            if in_writing:
                folder = self.folder / "pieces" / ("a" * 64)
                folder.mkdir(exist_ok=True)
                (folder / f"0-{self.runs}.part").write_bytes(b"half")

    @precondition(lambda self: self.caches)
    @rule(number=CACHES, piece=PIECES)
    def load(self, number, piece):
        cache = self.caches.get(number) or next(iter(self.caches.values()))
        is_there = cache.load(piece, lambda: bytes_of(piece))
        opened = cache.open(piece)
        assert is_there == (opened is not None)
        if opened is not None:
            assert bytes_in(opened, *piece[2:]) == bytes_of(piece)
            self.opened.append((piece, opened))

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
        for piece, opened in getattr(self, "opened", []):
            assert bytes_in(opened, *piece[2:]) == bytes_of(piece)

    @invariant()
    def pieces_that_can_be_opened_are_right(self):
        for cache in list(getattr(self, "caches", {}).values())[:1]:
            for number in range(0, 25, 6):
                piece = piece_number(number)
                opened = cache.open(piece)
                assert opened is None or bytes_in(opened, *piece[2:]) == bytes_of(piece)

    @invariant()
    def the_disk_holds_no_more_than_the_largest_limit(self):
        assert disk_bytes(self.folder) <= 9 * FILE + 4 if hasattr(self, "folder") else True

    def teardown(self):
        for number in list(getattr(self, "caches", {})):
            self.leave(number)
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)


Caches.TestCase.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
test_caches = Caches.TestCase
