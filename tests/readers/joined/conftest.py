"""Tables of the keys that `pack` gives to samples."""

import pyarrow as pa
import pytest
from pyarrow import parquet


@pytest.fixture
def write_table(tmp_path):
    """Writes a Parquet table of columns; keys are numbers of samples, or texts."""

    def write(keys, columns, name="table.parquet", key="__key__", **options):
        texts = [f"{each:06d}" if isinstance(each, int) else each for each in keys]
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table({key: texts, **columns}), path, **options)
        return str(path)

    return write
