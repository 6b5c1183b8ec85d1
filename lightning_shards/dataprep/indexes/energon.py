"""The writer of the folder `.nv-meta`, Megatron-Energon's index of a data set of tars.

energon 7 reads counts per shard, splits, and an SQLite table of all samples. Files that people
edit (`dataset.yaml`, `split.yaml`) are made if they are absent, and never touched once
they were edited.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

import numpy as np

from lightning_shards.dataprep.inspection.layout import lay_out
from lightning_shards.errors import ConfigError, FileAccessError
from lightning_shards.shards.beside import MAX_INDEX_BYTES
from lightning_shards.shards.files import make_folder, new_file, read_regular, replace_file
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.tables import TableStore

FOLDER: Final = ".nv-meta"
INFO: Final = ".info.json"
INFO_FIELDS: Final = frozenset({"energon_version", "shard_counts"})

_VERSION = "7.4.1"  # the version of energon that has this layout
_MAX_SHOWN = 80  # letters of a name in a message
_DATASET = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
_SCHEMA = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (
    tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER,
    content_byte_size INTEGER);
"""
_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq
    ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(
    tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""

_NO_SPLITS: Final[Mapping[str, Sequence[str]]] = {}


def write_energon(
    root: Path,
    counts: Mapping[str, int],
    splits: Mapping[str, Sequence[str]],
    store: TableStore,
    *,
    earlier: Mapping[str, Sequence[str]] = _NO_SPLITS,
) -> list[Path]:
    """Write `.nv-meta` into `root`; the module `idx_files` writes the shards' own `.tar.idx`.

    Args:
        root: The data set's folder.
        counts: Samples of each shard by its path below root, in the order of the shards.
        splits: Shards of each split by its name, as paths below root.
        store: Gives the member table of each shard.
        earlier: What `splits` was when the folder was last written.

    Raises:
        ConfigError: A key is in two shards or a name is not UTF-8, which energon does not accept.
        FileAccessError: The folder is a link, or a file cannot be written.
    """
    folder = make_folder(root, FOLDER)
    database = folder / "index.sqlite"
    _write_database(database, root, counts, store)
    info = {"energon_version": _VERSION, "shard_counts": dict(counts)}
    replace_file(folder / INFO, json.dumps(info, indent=2))
    digest = hashlib.sha256(database.read_bytes()).digest()
    replace_file(folder / "index.uuid", str(UUID(bytes=digest[:16], version=4)))
    written = [database, folder / INFO, folder / "index.uuid"]
    for name, text, before in (
        ("split.yaml", _split_yaml(splits), _split_yaml(earlier)),
        ("dataset.yaml", _DATASET, _DATASET),
    ):
        path = folder / name
        if not path.is_file() or read_regular(path, MAX_INDEX_BYTES) == before.encode():
            replace_file(path, text)
            written.append(path)
    return written


def _split_yaml(splits: Mapping[str, Sequence[str]]) -> str:
    """The contents of `split.yaml`: JSON is valid YAML, and is written without another package."""
    split_parts = {name: list(shards) for name, shards in splits.items() if shards}
    return json.dumps({"split_parts": split_parts, "exclude": []}, indent=2) + "\n"


def _write_database(path: Path, root: Path, counts: Mapping[str, int], store: TableStore) -> None:
    with new_file(path) as file:
        connection = sqlite3.connect(file.name)
        try:
            # No other program sees the file before it is renamed: no journal, no locks.
            connection.execute("PRAGMA journal_mode = OFF")
            connection.executescript(_SCHEMA)
            for number, name in enumerate(counts):
                _add_shard(connection, number, root / name, store)
            connection.executescript(_INDEXES)
            connection.commit()
        except sqlite3.Error as error:
            raise FileAccessError(
                f"{path} cannot be written: {error}; make room there, or leave energon out of the "
                "formats"
            ) from error
        finally:
            connection.close()


def _add_shard(connection: sqlite3.Connection, number: int, shard: Path, store: TableStore) -> None:
    table = store.table_now(shard)
    starts = lay_out(table, shard).sample_starts(table).tolist()
    samples = [
        (number, table.key(sample), sample, start, starts[sample + 1] - start)
        for sample, start in enumerate(starts[:-1])
    ]
    try:
        connection.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", samples)
        parts = _parts(number, table)
        connection.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", parts)
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"a name in {shard} is not UTF-8 ({error.object[:_MAX_SHOWN]!a}), and energon's index "
            "holds text; unpack the shard, pack the folder, and index that, or leave energon out"
        ) from error
    except sqlite3.IntegrityError as error:
        raise ConfigError(
            f"a key of {shard} is in another shard, too ({error}), and energon wants keys that are "
            "unique in the data set; write the shards anew by `reshard --duplicate-keys prefix`"
        ) from error


def _parts(number: int, table: MemberTable) -> Iterable[tuple[int, int, str, int, int]]:
    """The rows of all members of a shard."""
    owners = np.repeat(np.arange(table.num_samples), np.diff(table.sample_starts))
    columns = (owners, table.suffix_ids, table.offsets, table.sizes)
    for sample, suffix, offset, size in zip(*(column.tolist() for column in columns), strict=True):
        yield number, sample, table.suffixes[suffix], offset, size
