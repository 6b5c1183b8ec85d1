"""A table that would lose or mistake a value is refused, by the line that holds it."""

import json

import pytest

from lightning_shards.dataprep.listing import Columns, list_table
from lightning_shards.errors import ConfigError

NAN = float("nan")


@pytest.fixture
def refused(tmp_path):
    """Gives what is said of a table with this text."""

    def call(text, suffix):
        path = tmp_path / f"rows.{suffix}"
        path.write_text(text)
        with pytest.raises(ConfigError) as error:
            list_table(str(path), Columns(key="id", values=[("x", "txt")]))
        return str(error.value).removeprefix(f"{path}, ")

    return call


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 1 2}', "row 2: Expecting ',' delimiter"),
        ('{"id": 1}', "row 2: the table has no column 'x', but id"),
    ],
)
def test_a_bad_line_is_named_by_its_row(refused, line, message):
    assert refused(f'{{"id": 0, "x": 1}}\n{line}\n', "jsonl").startswith(message)


@pytest.mark.parametrize("column", ["key", "class_column", "split_column"])
def test_nan_is_no_key_class_or_split(tmp_path, column):
    columns = Columns(**({"key": "id", "values": [("x", "txt")]} | {column: "empty"}))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": "a", "x": "b", "empty": NAN}))
    with pytest.raises(ConfigError, match="row 1: the column 'empty' is empty"):
        list_table(str(tmp_path / "rows.jsonl"), columns)
