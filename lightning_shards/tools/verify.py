"""`lightning-shards verify`: checks that shards are unchanged, and repairs damaged ones."""

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lightning_shards.dataprep.inspection.check import Checked, check_shards
from lightning_shards.dataprep.inspection.repairs import REPORT, repair_place
from lightning_shards.dataprep.inspection.salvage import Decode
from lightning_shards.dataprep.listing import require_no_other_classes, write_classes
from lightning_shards.errors import count_of
from lightning_shards.tools.console import (
    print_findings,
    printable,
    run_tool,
    shard_parser,
    status_of,
)
from lightning_shards.tools.shard_options import (
    add_shard_options,
    classes_in_folders_of,
    settings_of,
    shards_of,
)

_EPILOG = """Every header and every byte is read. Changed bytes are found where `index --checksums`
was run before; the last line says for how many shards. Every file beside the shards that counts
their samples is compared, too. --repair writes a copy of each bad shard, with the samples that are
whole, to another folder, with the classes.json of the originals and a repair.json, which lists what
was lost, and the places of which it is not known what stood there; the originals stay as they are,
and in that folder, which one run at a time may hold, nothing is replaced but what its repair.json
names as a repair of the same shard. Remote shards are fetched whole, one at a time for each process
(to TMPDIR). A shard that could not be read, because its store does not answer or refuses, is told
as such and never repaired.
Exit status: 0 all is well, 1 something is wrong, 2 not done, or some shards could not be read."""
_MAX_LOST = 10


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
    add_shard_options(parser)
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
    urls = shards_of(options)
    if options.decode == "images":
        from lightning_shards.samples.images import require_backend

        require_backend("pillow")
    with repair_place(urls, options.repair):
        return _verify_shards(urls, options)


def _verify_shards(urls: Sequence[str], options: Namespace) -> int:
    folder: Path | None = options.repair
    classes: dict[str, int] = {}
    if folder is not None:
        # an error rather than copies without the names, where a store does not answer
        known = classes_in_folders_of(urls, settings_of(options))
        classes = {} if known is None else dict(known.numbers)
        require_no_other_classes(folder, classes)
    checked = check_shards(
        urls,
        cache=options.cache,
        settings=settings_of(options),
        decoder_of=image_decoder if options.decode == "images" else None,
        repair_to=folder,
        processes=options.processes,
    )
    document = {
        "shards": len(urls),
        "samples": checked.samples,
        "checksummed": checked.checksummed,
        "findings": [finding.as_json() for finding in checked.findings],
        "repairs": {path: asdict(repair) for path, repair in checked.repairs.items()},
    }
    if checked.repairs and folder is not None:
        write_classes(folder, classes)
    if options.json:
        print(json.dumps(document))
    else:
        _print(checked, len(urls))
    return status_of(checked.failures)


def _print(checked: Checked, num_shards: int) -> None:
    print_findings(checked.findings)
    for path, repair in checked.repairs.items():
        where = f"wrote {repair.path}" if repair.path else "nothing could be saved"
        least = "at least " * bool(repair.unread)
        lost = f"{least}{len(repair.lost):,} lost"
        print(f"{path}: {where}, {repair.saved:,} samples saved, {lost}")
        for message in repair.unread[:_MAX_LOST]:
            print(f"  {printable(message)}")
        if len(repair.unread) > _MAX_LOST:
            print(f"  and {len(repair.unread) - _MAX_LOST:,} more such places, in {REPORT}")
        for key, reason in list(repair.lost.items())[:_MAX_LOST]:
            print(f"  lost {printable(key)}: {reason}")
        if len(repair.lost) > _MAX_LOST:
            print(f"  and {len(repair.lost) - _MAX_LOST:,} more, in {REPORT}")
    print(f"{count_of(num_shards, 'shard')}, {count_of(checked.samples, 'sample')}: ", end="")
    print(_verdict(checked, num_shards))


def _verdict(checked: Checked, num_shards: int) -> str:
    shards = count_of(num_shards, "shard")
    held = f"{checked.checksummed:,} of {shards} had checksums to be held against"
    if checked.failures:
        return f"{count_of(len(checked.failures), 'problem')}; {held}"
    if checked.checksummed == num_shards:
        return "all is well, by the checksums of all shards"
    return (
        f"no problem was found, but {held}; in others no changed byte shows: run `lightning-shards "
        "index --checksums` once the shards are known to be good"
    )
