"""`lightning-shards verify`: checks that local shards are unchanged, and repairs damaged ones."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lightning_shards.dataprep.survey import Survey
from lightning_shards.dataprep.verify import (
    REPAIRABLE,
    Decode,
    Repair,
    repair_shards,
    require_place,
    verify_shards,
)
from lightning_shards.errors import count_of
from lightning_shards.shards.remote.proxies import require_local
from lightning_shards.tools.console import report, run_tool
from lightning_shards.tools.shard_options import shard_parser, shards_of, status_of

_EPILOG = """\
Every header and every byte of local shards is read; training holds each member that it
reads against its crc32, remote ones too. Changed bytes are found where `index --checksums` was run
before; the last line says for how many shards. The wids JSONs and the sizes.json beside the shards
are compared, too. --repair writes a copy of each bad shard, with the samples that are whole, to an
empty folder, with a repair.json, which lists what was lost, and the places of which it is not known
what stood there; the originals stay as they are. Exit status: 0 all is well, 1 something is wrong,
2 not done, or some shards could not be read."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = shard_parser("verify", "Check shards, and repair them.", _EPILOG)
    parser.add_argument(
        "--decode",
        choices=("images", "none"),
        default="images",
        help="what to decode, to see that it can be; default: images",
    )
    parser.add_argument("--repair", type=Path, metavar="DIR", help="write repaired copies there")
    run_tool("verify", _verify, parser.parse_args(arguments))


def image_decoder(suffix: str) -> Decode | None:
    """The decoder of images of a suffix; None if the suffix is not of images."""
    from lightning_shards.samples.decoders import Decoding, decoding_of
    from lightning_shards.samples.fields import Field

    decoding = decoding_of(suffix)
    if decoding is None or decoding.decoder != "rgb":
        return None
    return Field("image", (suffix,)).function(Decoding("pil", decoding.is_gzipped))


def _verify(options: Namespace) -> int:
    paths = require_local(shards_of(options), "verify")
    decoder_of = None
    if options.decode == "images":
        from lightning_shards.samples.images import require_backend

        require_backend("pillow")
        decoder_of = image_decoder
    if options.repair is not None:
        require_place(paths, options.repair)
    seen = verify_shards(
        paths, cache=options.cache, decoder_of=decoder_of, processes=options.processes
    )
    repairs: dict[str, Repair] = {}
    if options.repair is not None:
        bad = {finding.shard for finding in seen.findings if finding.rule in REPAIRABLE}
        repairs = repair_shards(
            [path for path in paths if path in bad],
            options.repair,
            cache=options.cache,
            processes=options.processes,
        )
    document = {
        "shards": len(paths),
        "samples": seen.samples,
        "checksummed": sum(shard.has_checksums for shard in seen.shards),
        "findings": [finding.as_json() for finding in seen.findings],
        "repairs": {path: asdict(repair) for path, repair in repairs.items()},
        "verdict": _verdict(seen),
    }
    report(document, as_json=options.json)
    return status_of(seen.failures)


def _verdict(seen: Survey) -> str:
    checksummed = sum(shard.has_checksums for shard in seen.shards)
    shards = count_of(len(seen.shards), "shard")
    held = f"{checksummed:,} of {shards} had checksums to be held against"
    if seen.failures:
        return f"{count_of(len(seen.failures), 'problem')}; {held}"
    if checksummed == len(seen.shards):
        return "all is well, by the checksums of all shards"
    return (
        f"no problem was found, but {held}; in others no changed byte shows: run `lightning-shards "
        "index --checksums` once the shards are known to be good"
    )
