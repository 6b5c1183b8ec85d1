"""`lightning-shards trace`: lists the samples that every rank sees at given steps."""

import json
import re
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_shards.errors import ConfigError, IndexMismatchError
from lightning_shards.shards.files import make_folder, not_written
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.urls import is_local, redact

if TYPE_CHECKING:
    from lightning_shards.readers.open_shards import OpenShards
    from lightning_shards.readers.source import ServedSample, SourceDescription
    from lightning_shards.tools.class_columns import ClassesOfRows
    from lightning_shards.tools.configured_data import ConfiguredData

_EPILOG = """\
Steps and epochs count from 0. The answer is what training gets in an epoch that one run began at
its start with this world size, batch size and, for the stream reader, number of workers:
  - the indexed reader (sampling 'shuffled', 'sequential') is asked by arithmetic, at any step;
  - the stream reader (sampling 'resampled') reads its shards again from the epoch's start; a run
    that resumed inside of the epoch got fresh draws from there on, which are not what this prints.
Take the config.yaml that the run saved in its log folder: it has the command line's options too.
A sample of weight 0, which only fills up a last step, is listed like the others. Of a mix each
sample comes with the name of its component.

  lightning-shards trace --config config.yaml --epoch 3 --steps 1234:1236 --samples spike/
"""

_UNSAFE_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]|\.{2,}")
"""Text that is unsafe in file names: separators, `..`, and letters beyond ASCII."""

_MAX_NAME = 100
"""Most characters of a key or suffix in a file's name; file systems allow 255 bytes in all."""

Steps = list[list[list["ServedSample"]]]
"""The rows of the batch of each rank at each step."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; an error is one line on stderr and exit status 2."""
    options = _parser().parse_args(arguments)
    from lightning_shards.tools.console import run_tool

    run_tool("trace", _trace, options)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="lightning-shards trace",
        description="Print the keys and ids of the samples of every rank's batches.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", required=True, type=Path, help="a YAML of LightningCLI: its section `data`"
    )
    parser.add_argument(
        "--split", default="train", help="train, val, test or predict; or a set: val/NAME"
    )
    parser.add_argument("--epoch", required=True, type=int, help="number of the epoch")
    parser.add_argument("--steps", required=True, metavar="A:B", help="from step A up to, not B")
    parser.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help="data-parallel ranks; default: the config's trainer, devices x num_nodes",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="DIR",
        help="also write each sample's members to DIR/step-rank-row-key.suffix (of remote shards "
        "with tables, too)",
    )
    return parser


def _trace(options: Namespace) -> int:
    from lightning_shards.build.pools import make_pool
    from lightning_shards.plan.place import Place
    from lightning_shards.readers.open_shards import OpenShards
    from lightning_shards.readers.replay import batch_keys
    from lightning_shards.tools.class_columns import classes_of_rows

    steps = _parse_steps(options.steps)
    data = _configured_data(options.config)
    given: int | None = options.world_size
    world_size = _world_size(options.config) if given is None else given
    source = data.source(options.split)
    description = source.describe()
    source.epochs.plan(world_size).require_steps(options.split, is_nominal=description.is_nominal)
    pool = make_pool(data.loader_config, data.num_workers, source, Place(0, world_size))
    num_producers, index = pool.describe().num_producers, description.index
    is_readable = _is_readable(description)
    if options.samples is not None and not is_readable:
        raise ConfigError(
            "--samples takes samples by their offsets, and some shards are remote and streamed; "
            "put member tables beside them, or copy them here"
        )
    ranks = [
        batch_keys(source, Place(rank, world_size), options.epoch, steps, num_workers=num_producers)
        for rank in range(world_size)
    ]
    served: Steps = [list(batches) for batches in zip(*ranks, strict=True)]
    classes: ClassesOfRows = {}
    if index is not None and is_readable:
        cache, rows = CacheFolder(data.loader_config.cache_dir), list(_rows(served, steps.start))
        with OpenShards(index, cache, storages=description.storages) as shards:
            if options.samples is not None:
                _write_samples(options.samples, rows, shards)
            known = (index.urls, shards, data.loader_config.storage_options)
            classes = classes_of_rows([row for _, _, _, row in rows], description.fields, *known)
    if options.json:
        print(_as_json(served, steps, options.epoch, options.split, description, classes))
    else:
        print(_as_table(served, steps, description, classes))
    return 0


def _is_readable(description: "SourceDescription") -> bool:
    """Whether its samples can be taken by their offsets."""
    index = description.index
    return index is not None and (not description.is_streamed or all(map(is_local, index.urls)))


def _parse_steps(text: str) -> range:
    match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise ConfigError(
            f"--steps must be A:B with 0 <= A < B < 10**18, as in 1234:1236, got {text[:40]!r}"
        )
    return range(int(match[1]), int(match[2]))


def _as_json(
    served: Steps,
    steps: range,
    epoch: int,
    split: str,
    description: "SourceDescription",
    classes: "ClassesOfRows",
) -> str:
    def document_of(row: "ServedSample") -> dict[str, object]:
        labels = classes.get((row.shard, row.sample))
        component = description.component_of(row.shard)
        document: dict[str, object] = row._asdict()
        document |= {"component": component} if component else {}
        return document | ({"classes": labels} if labels else {})

    document = {
        "epoch": epoch,
        "world_size": len(served[0]),
        "split": split,
        "steps": [
            {"step": step, "ranks": [[document_of(row) for row in batch] for batch in batches]}
            for step, batches in zip(steps, served, strict=True)
        ],
    }
    return json.dumps(document)


def _rows(served: Steps, first_step: int) -> Iterator[tuple[int, int, int, "ServedSample"]]:
    """Step, rank, number of the row in the batch, and the row."""
    for step, batches in enumerate(served, first_step):
        for rank, batch in enumerate(batches):
            for number, row in enumerate(batch):
                yield step, rank, number, row


def _as_table(
    served: Steps, steps: range, description: "SourceDescription", classes: "ClassesOfRows"
) -> str:
    """One line per sample; the key comes last, because it may be long."""
    fields = list(dict.fromkeys(field for labels in classes.values() for field in labels))
    mixed = ["component"] if description.mixture is not None else []
    lines = [["step", "rank", "row", *mixed, "shard", "sample", *fields, "key"]]
    for step, rank, number, row in _rows(served, steps.start):
        labels = classes.get((row.shard, row.sample), {})
        component = [description.component_of(row.shard) for _ in mixed]
        cells = [*map(str, (step, rank, number)), *component, str(row.shard), str(row.sample)]
        texts = [*(labels.get(field, "") for field in fields), row.key]
        cells += [text if text.isprintable() else ascii(text) for text in texts]
        lines.append(cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[-1] = 0
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def _configured_data(config: Path) -> "ConfiguredData":
    """The data that LightningCLI would make of the section `data`."""
    from lightning_shards.config.files import read_setting
    from lightning_shards.tools.configured_data import open_data

    if read_setting(config, "data") is None:
        raise ConfigError("the config has no section `data`, with the options of ShardDataModule")
    return open_data(config)


def _world_size(config: Path) -> int:
    """Devices times nodes of the trainer; a note says it if devices are no number."""
    from lightning_shards.tools.configured_data import note_unknown_devices, trainer_size

    devices, nodes = trainer_size(config)
    if devices is None:
        note_unknown_devices("trace", config, "--world-size")
    return (devices or 1) * nodes


def _write_samples(
    folder: Path, rows: Iterable[tuple[int, int, int, "ServedSample"]], shards: "OpenShards"
) -> None:
    """Write the members of all rows with the bytes from the tars; no file is overwritten."""
    make_folder(folder)
    for step, rank, number, row in rows:
        members = shards.members(row.shard, row.sample)
        if members["__key__"] != row.key:
            raise IndexMismatchError(
                f"sample {row.sample} of {redact(members['__url__'])} is {members['__key__']!r} in "
                f"its table of members and {row.key!r} in the stream; look at the shard"
            )
        for suffix in members:
            name = f"{row.key[:_MAX_NAME]}.{suffix[:_MAX_NAME]}"
            path = folder / f"{step}-{rank}-{number}-{_UNSAFE_IN_NAMES.sub('_', name)}"
            _write_new(path, members[suffix])


def _write_new(path: Path, data: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already; name another folder for --samples") from error
    except OSError as error:
        raise not_written(path, error) from error
