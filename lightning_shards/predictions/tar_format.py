"""Predictions as a WebDataset tar: `KEY.NAME.npy` or `.txt`, and `KEY.id.json` for the id."""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

import numpy as np

from lightning_shards.errors import ConfigError
from lightning_shards.predictions.rows import ColumnTypes, PredictedRows
from lightning_shards.shards.tar.walk import split_name

_ID = ".id.json"  # no column's member ends so; it is the first member of its sample

_Members: TypeAlias = list[tuple[str, bytes]]
"""Names and contents of the members of one sample."""


class TarPredictions:
    """Writes rows to an open file, which the caller closes; a row is the members of a sample.

    Equal rows give equal bytes: headers have no times and no owners.
    """

    def __init__(self, file: BinaryIO, types: ColumnTypes) -> None:
        self._tar: Any = tarfile.open(  # noqa: SIM115 finish() closes it
            fileobj=file, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape"
        )
        self._last = ""

    def write(self, rows: PredictedRows) -> None:
        """Add the rows of a batch."""
        for number, (key, sample_id) in enumerate(zip(rows.keys, rows.ids.tolist(), strict=True)):
            members = [(f"{key}{_ID}", json.dumps(sample_id).encode())]
            for name, column in rows.columns.items():
                field, data = _encoded(name, column[number])
                if split_name(f"{key}.{field}") != (key, field):
                    raise ConfigError(
                        f"the member {f'{key}.{field}'!r} of a tar would not be read as the field "
                        f"{field!r} of the sample {key!r}; give the entry that predict_step returns"
                        " a name in lower case, without slashes, or take the format parquet or csv"
                    )
                members.append((f"{key}.{field}", data))
            self.write_row(members)

    def write_row(self, row: object) -> None:
        """Add a row that `read` gave.

        Raises:
            ConfigError: The sample before has the same key, so that a reader would join them.
        """
        members = cast("_Members", row)
        if members[0][0] == self._last:
            raise ConfigError(
                f"two samples in a row have the key {self._last.removesuffix(_ID)!r}, and a tar "
                "would make one sample of them; take the format parquet or csv"
            )
        self._last = members[0][0]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            self._tar.addfile(info, io.BytesIO(data))
        self._tar.members.clear()  # tarfile would keep the headers of all

    def finish(self) -> None:
        """Write the end mark."""
        self._tar.close()

    @staticmethod
    def read(path: Path) -> Iterator[tuple[tuple[int, int], _Members]]:
        """The id and the members of each sample, in the order of the file."""
        with tarfile.open(path, errors="surrogateescape") as opened:
            tar: Any = opened  # its list of members is not typed
            row: _Members = []
            while (member := tar.next()) is not None:
                if member.name.endswith(_ID) and row:
                    yield _id_of(row), row
                    row = []
                row.append((member.name, tar.extractfile(member).read()))
                tar.members.clear()
            if row:
                yield _id_of(row), row


def _id_of(row: _Members) -> tuple[int, int]:
    shard, sample = json.loads(row[0][1])
    return shard, sample


def _encoded(name: str, value: object) -> tuple[str, bytes]:
    """The field of a value, and the bytes of its member."""
    if isinstance(value, str):
        return f"{name}.txt", value.encode("utf-8", "backslashreplace")
    data = io.BytesIO()
    np.save(data, np.asarray(value, order="C"))
    return f"{name}.npy", data.getvalue()
