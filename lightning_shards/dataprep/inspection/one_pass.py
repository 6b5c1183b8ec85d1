"""The scan of a tar in one pass: its samples, crc32s of their members, and what is in no sample."""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.dataprep.forward_tar import ForwardTar
from lightning_shards.dataprep.inspection.layout import PassedOver, kind_of_name
from lightning_shards.shards.tar.blocks import up_to_block
from lightning_shards.shards.tar.plain_runs import SampleRun, joined_runs, plain_runs, run_of
from lightning_shards.shards.tar.walk import Member, OtherEntry, group_members, walk_members


class ScannedTar(NamedTuple):
    """What one pass over a tar has found.

    Attributes:
        samples: All samples.
        crc32s: Of each member of a sample, uint32; None if they were not wanted.
        passed_over: What is in no sample, in file order.
    """

    samples: SampleRun
    crc32s: NDArray[np.uint32] | None
    passed_over: list[PassedOver]


def scan_once(data: ForwardTar, url: str, *, with_crc32: bool) -> ScannedTar:
    """Scan a tar; `url` only serves the messages.

    Raises:
        DamagedShardError: The bytes are not one whole tar archive.
    """
    runs: list[SampleRun] = []
    crc32s = array("I")
    for run in plain_runs(data):
        runs.append(run)
        if with_crc32:
            crc32s.extend(map(data.crc32, run.offsets.data, run.sizes.data))
    walk = _Walk(data, url, runs[-1].stop if runs else 0, with_crc32=with_crc32)
    runs.append(run_of(walk.samples(), len(data)))
    crc32s += walk.crc32s
    passed_over = walk.passed_over()
    return ScannedTar(joined_runs(runs), np.array(crc32s) if with_crc32 else None, passed_over)


class _Seen(NamedTuple):
    """A member that may yet turn out to be in no sample; `start` is that of its first header."""

    member: Member
    start: int
    crc32: int


class _Walk:
    """The samples from a header on, read one by one.

    Attributes:
        crc32s: Of the members of the samples that were yielded.
    """

    def __init__(self, data: ForwardTar, url: str, start: int, *, with_crc32: bool) -> None:
        self._data, self._url, self._with_crc32 = data, url, with_crc32
        self._start, self._end = start, start
        self._others: list[OtherEntry] = []
        self._seen: dict[int, _Seen] = {}
        self._passed_over: list[PassedOver] = []
        self.crc32s = array("I")

    def samples(self) -> Iterator[tuple[str, dict[str, Member]]]:
        """The samples, as `group_members` gives them."""
        for key, fields in group_members(self._members(), self._url):
            for member in fields.values():
                seen = self._seen.pop(member.offset)
                if self._with_crc32:
                    self.crc32s.append(seen.crc32)
            yield key, fields

    def passed_over(self) -> list[PassedOver]:
        """What is in none of the samples, once all were yielded."""
        names = ((seen.member.name, seen.start) for seen in self._seen.values())
        of_members = [PassedOver(name, start, kind_of_name(name)) for name, start in names]
        return sorted(self._passed_over + of_members, key=lambda entry: entry.offset)

    def _members(self) -> Iterator[Member]:
        for member in walk_members(self._data, self._url, self._start, self._others):
            self._pass_over_others()
            crc32 = self._data.crc32(member.offset, member.size) if self._with_crc32 else 0
            self._seen[member.offset] = _Seen(member, self._end, crc32)
            self._end = up_to_block(member.offset + member.size)
            yield member
        self._pass_over_others()

    def _pass_over_others(self) -> None:
        """Note what follows the last member and is no regular file."""
        for entry in self._others:
            self._passed_over.append(PassedOver(entry.name, self._end, entry.kind))
            self._end = up_to_block(entry.stop)
        self._others.clear()
