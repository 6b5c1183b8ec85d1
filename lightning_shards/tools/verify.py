"""`lightning-shards verify`: checks that local shards are unchanged, and repairs damaged ones."""

from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_shards.dataprep.survey import Survey
from lightning_shards.dataprep.verify import repair_shards, require_place, verify_shards
from lightning_shards.errors import count_of
from lightning_shards.shards.patterns import require_local
from lightning_shards.tools.console import report, run_tool, shard_parser, shards_of, status_of

_EPILOG = """\
Every header, every byte and every image of local shards is read; training holds each member that it
reads against its crc32, remote ones too. Changed bytes are found where `index --checksums` was run
before; the last line says for how many shards. The MD5s in the wids.json beside the shards are
compared, too. --repair writes a copy of each bad shard, with the samples that are whole, to an
empty folder, with a repair.json, which lists what was lost, and the places of which it is not known
what stood there; the originals stay as they are. Exit status: 0 all is well, 1 something is wrong,
2 not done, or some shards could not be read."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = shard_parser("verify", "Check shards, and repair them.", _EPILOG)
    parser.add_argument("--repair", type=Path, metavar="DIR", help="write repaired copies there")
    run_tool("verify", _verify, parser.parse_args(arguments))


def _verify(options: Namespace) -> int:
    paths = require_local(shards_of(options), "verify")
    if options.repair is not None:
        require_place(paths, options.repair)
    how: dict[str, Any] = {"cache": options.cache, "processes": options.processes}
    seen = verify_shards(paths, **how)
    repairs = {} if options.repair is None else repair_shards(seen, options.repair, **how)
    document = seen.document() | {
        "repairs": repairs,
        "note": None if find_spec("PIL") else "no image was decoded, for want of the extra `image`",
        "verdict": _verdict(seen),
    }
    report(document, as_json=options.json)
    return status_of(seen.failures)


def _verdict(seen: Survey) -> str:
    known, total = sum(shard.has_checksums for shard in seen.shards), len(seen.shards)
    verdict = (
        f"{count_of(len(seen.failures), 'problem')}; {known:,} of {total:,} shards had checksums"
    )
    others = (
        "; in others no changed byte shows: run `lightning-shards index --checksums` once the "
        "shards are known to be good"
    )
    return verdict + others * (known < total)
