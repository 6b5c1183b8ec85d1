"""The check of shards: every header, every byte, every name, and on request every image.

A shard is compared with all that is known of it: its own checksums, the member tables of earlier
indexes (whose crc32s show which member changed), and the files beside it that count it or have its
MD5. Results are not written anywhere, so that the table of a sound shard is kept if the shard is
damaged later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lightning_shards.dataprep.damaged_tar import DamagedRange, walk_around_damage
from lightning_shards.dataprep.earlier_claims import ShardClaim
from lightning_shards.dataprep.inspection.findings import (
    NOT_SURVEYED,
    Finding,
    find_long_end,
    find_passed_over,
    finding_of,
    reported_name,
)
from lightning_shards.dataprep.inspection.layout import lay_out
from lightning_shards.dataprep.inspection.listed_shards import (
    claims_beside,
    file_md5,
    have_same_extents,
    known_tables,
)
from lightning_shards.dataprep.inspection.repairs import repair_shard, repair_shards
from lightning_shards.dataprep.inspection.salvage import (
    DecoderOf,
    Salvage,
    decoding_problem,
)
from lightning_shards.dataprep.inspection.survey import (
    ShardSurvey,
    compare_keys,
    describe_shard,
    each_shard,
    under_url,
    without_samples,
)
from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.members import ENCODING, MemberTable, scan_members
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.local_copies import local_copy
from lightning_shards.shards.tar.compression import compression_at
from lightning_shards.shards.tar.tar_bytes import TarBytes, open_tar
from lightning_shards.shards.tar.walk import walk_members

_MAX_NAMED = 1000
"""Most findings of one kind in one shard; the last one counts the rest."""

_MAX_SHOWN = 40
"""Most letters shown of a value in a file that others wrote."""

REPAIRABLE = frozenset(
    {"damaged shard", "changed member", "undecodable member", "split sample", "duplicate key"}
)
"""Rules of findings whose shards can be repaired."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check of all shards.

    Attributes:
        samples: Samples in the shards that could be read.
        checksummed: Shards whose bytes could be held against checksums of an earlier index.
        findings: Faults, and other facts that are worth knowing.
        repairs: Repairs by path or redacted URL of the bad shard; empty without repair.
    """

    samples: int
    checksummed: int
    findings: list[Finding]
    repairs: dict[str, Salvage]

    @property
    def failures(self) -> list[Finding]:
        """The findings that are faults."""
        return [finding for finding in self.findings if finding.is_failure]


def check_shards(
    urls: Sequence[str],
    *,
    cache: CacheFolder,
    settings: TransportSettings | None = None,
    decoder_of: DecoderOf | None = None,
    repair_to: Path | None = None,
    processes: int = 1,
    show_progress: bool | None = None,
) -> Checked:
    """Check shards, and save the whole samples of bad ones.

    Args:
        urls: URLs of the shards, each once.
        cache: Where earlier indexes kept the member tables.
        settings: How remote shards are reached; None: as the tools of their stores are set up.
        decoder_of: Gives the decoder of a suffix, or None if its members are not to be decoded.
        repair_to: A folder for repaired copies of bad shards, which `repair_place` holds; None for
            no repair.
        processes: Number of processes.
        show_progress: Whether to draw a line on stderr; None does so on a terminal.
    """
    settings = settings or TransportSettings(cache_dir=str(cache.root))
    claims, missing = claims_beside(urls, settings)
    tasks = [(url, claims.get(url, [])) for url in urls]
    check = partial(check_shard, cache=cache, settings=settings, decoder_of=decoder_of)
    surveys = list(each_shard("checked", check, urls, tasks, processes, show=show_progress))
    findings = [finding for shard in surveys for finding in shard.findings] + missing
    findings += compare_keys(urls, surveys, partial(_key_of, cache, settings))
    repairs: dict[str, Salvage] = {}
    if repair_to is not None:
        repair = partial(repair_shard, cache=cache, settings=settings, decoder_of=decoder_of)
        repairs, unread = repair_shards(_to_repair(urls, findings), repair_to, repair, processes)
        findings += unread
    checksummed = sum(shard.has_checksums for shard in surveys)
    return Checked(sum(shard.samples for shard in surveys), checksummed, findings, repairs)


def check_shard(
    task: tuple[str, Sequence[ShardClaim]],
    *,
    cache: CacheFolder,
    settings: TransportSettings | None = None,
    decoder_of: DecoderOf | None = None,
) -> ShardSurvey:
    """Check one shard; the task is its path or URL, and what files beside it say of it."""
    url, claims = task
    try:
        known = known_tables(url, cache, settings)
        with local_copy(url, cache, settings) as shard:
            survey = _check_file(shard.path, claims, known.tables, decoder_of)
            survey.findings += known.findings
            return under_url(survey, url)
    except NOT_SURVEYED as error:
        return without_samples(url, error)


def _check_file(
    path: str,
    claims: Sequence[ShardClaim],
    known: Sequence[MemberTable],
    decoder_of: DecoderOf | None,
) -> ShardSurvey:
    survey = ShardSurvey(path)
    survey.has_checksums = any(old.crc32 is not None for old in known)
    try:
        table = scan_members(path, with_crc32=True)
    except DamagedShardError as error:
        survey.findings = _damage(path, error, next(iter(known), None))
        return survey
    survey.samples, survey.size_bytes = table.num_samples, table.file_size
    layout = lay_out(table, path)
    describe_shard(survey, table, find_passed_over(layout.passed_over, path))
    survey.findings += find_long_end(layout.end, table.file_size, path)
    changed = [finding for old in known for finding in _changed_members(path, table, old)]
    survey.findings += dict.fromkeys(changed)  # two tables say the same as a rule
    _add_differences(survey, table, claims)
    survey.findings += _unprotected_names(path)
    if decoder_of is not None:
        survey.findings += _undecodable(path, table, decoder_of)
    return survey


def _to_repair(urls: Sequence[str], findings: Sequence[Finding]) -> list[str]:
    """The shards with findings that can be repaired."""
    bad = {finding.shard for finding in findings if finding.rule in REPAIRABLE}
    return [url for url in urls if reported_name(url) in bad]


def _key_of(cache: CacheFolder, settings: TransportSettings, url: str, sample: int) -> str:
    with local_copy(url, cache, settings) as shard:
        return scan_members(shard.path).key(sample)


def _damage(path: str, error: DamagedShardError, known: MemberTable | None) -> list[Finding]:
    """Findings about the damaged byte, the last sound member before it, and the samples hit."""
    first = finding_of(error, path)
    if not Path(path).is_file() or not Path(path).stat().st_size or compression_at(path):
        return [first]
    before: str | None = None
    with open_tar(path) as data:
        for read in walk_around_damage(data, path):
            if isinstance(read, DamagedRange) or (first.byte and read.offset >= first.byte):
                break
            before = read.name
        hit = _changed(data, known) if known is not None else []
    after = f"; the last sound member before is {before!r}" if before else ""
    message = f"{error}{after}; verify --repair saves what can be saved"
    return [Finding("damaged shard", message, path, before, first.byte), *_named(path, known, hit)]


def _changed_members(path: str, table: MemberTable, known: MemberTable) -> list[Finding]:
    """Findings about members whose bytes differ from those that were indexed."""
    if known.crc32 is None or known.has_same_members(table):
        return []
    if not have_same_extents(known, table):
        message = (
            f"its members are not those of its last index ({known.num_samples:,} samples then, "
            f"{table.num_samples:,} now); index it again if it was meant, else fetch it again"
        )
        return [Finding("changed shard", message, path)]
    assert table.crc32 is not None  # the scan was with_crc32
    changed = np.flatnonzero(known.crc32 != table.crc32).tolist()
    if not changed:
        message = (
            "the names of its members are not those of its last index, their bytes are; index it "
            "again if it was meant, else fetch it again"
        )
        return [Finding("changed shard", message, path)]
    return _named(path, known, changed)


def _unprotected_names(path: str) -> list[Finding]:
    """A finding about names in long-name headers that no checksum fully covers."""
    with open_tar(path) as data:
        weak = [member for member in walk_members(data, path) if member.unprotected]
    if not weak:
        return []
    bare = sum(member.unprotected >= len(member.name.encode(*ENCODING)) for member in weak)
    message = (
        f"nothing protects the ends of the names of {len(weak):,} members, first "
        f"{weak[0].name!r}: they stand in long-name headers, which have no checksum; of {bare:,} "
        "not even the beginnings could be compared; pack them under names of 100 ASCII letters"
    )
    offset = weak[0].offset
    return [Finding("unprotected name", message, path, byte=offset, count=len(weak))]


def _changed(data: TarBytes, known: MemberTable) -> list[int]:
    """Numbers of the members of the table whose bytes are missing or have changed."""
    if known.crc32 is None:
        return []
    extents = zip(known.offsets.tolist(), known.sizes.tolist(), known.crc32.tolist(), strict=True)
    return [
        member
        for member, (start, size, right) in enumerate(extents)
        if start + size > len(data) or data.crc32(start, size) != right
    ]


def _named(path: str, known: MemberTable | None, members: Sequence[int]) -> list[Finding]:
    """A finding for each of these members of a table."""
    if known is None:
        return []
    owners = np.searchsorted(known.sample_starts, np.array(members, np.int64), side="right") - 1
    findings: list[Finding] = []
    for member, sample in zip(members[:_MAX_NAMED], owners.tolist(), strict=False):
        key, offset = known.key(sample), int(known.offsets[member])
        name = f"{key}.{known.suffixes[known.suffix_ids[member]]}"
        message = f"member {name!r} is not what it was when indexed; fetch the shard again"
        rest = len(members) - _MAX_NAMED if len(findings) == _MAX_NAMED - 1 else 0
        findings.append(Finding("changed member", message, path, key, offset, 1 + max(rest, 0)))
    return findings


def _add_differences(survey: ShardSurvey, table: MemberTable, claims: Sequence[ShardClaim]) -> None:
    """Add findings about facts that files beside the shard state differently."""
    facts: dict[str, object] = {"filesize": table.file_size, "nsamples": table.num_samples}
    if any("md5sum" in claim.facts for claim in claims):
        facts["md5sum"] = file_md5(survey.path)
        survey.has_checksums = True
    for claim in claims:
        stated = claim.facts
        different = [name for name in facts if name in stated and stated[name] != facts[name]]
        if not different:
            continue
        name = different[0]
        value = str(stated[name])[:_MAX_SHOWN]
        if set(stated) == {"nsamples"}:  # it says nothing of the bytes that it has counted
            message = (
                f"{claim.source} counts {value} samples in {survey.path}, which holds "
                f"{table.num_samples:,}; delete or remake that file"
            )
            survey.findings.append(Finding("stale count", message, survey.path))
        else:
            message = (
                f"its {name} is {facts[name]}, {value} by the index {claim.source}; index it again "
                "if it was written anew, else fetch it again"
            )
            survey.findings.append(Finding("changed shard", message, survey.path))


def _undecodable(path: str, table: MemberTable, decoder_of: DecoderOf) -> list[Finding]:
    """Findings about members that their decoder refuses."""
    decoders = [decoder_of(suffix) for suffix in table.suffixes]
    owners = np.repeat(np.arange(table.num_samples), np.diff(table.sample_starts))
    columns = (owners, table.suffix_ids, table.offsets, table.sizes)
    rows: list[list[int]] = np.stack(columns, axis=1).astype(np.int64).tolist()
    findings: list[Finding] = []
    with open_tar(path) as data:
        for sample, suffix, offset, size in rows:
            decode = decoders[suffix]
            if decode is None:
                continue
            problem = decoding_problem(decode, data[offset : offset + size])
            if problem is not None:
                key = table.key(sample)
                message = (
                    f"member '{key}.{table.suffixes[suffix]}' cannot be decoded: {problem}; fetch "
                    "the shard again, or leave the sample out by --repair"
                )
                findings.append(Finding("undecodable member", message, path, key, offset))
    return findings
