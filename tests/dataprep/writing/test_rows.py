"""A table that would lose or mistake a value is refused, by the line that holds it."""

import json

import pytest

from lightning_shards.dataprep.writing.rows import Columns, list_rows, list_table, read_rows
from lightning_shards.errors import ConfigError, SampleError

NAN = float("nan")


@pytest.fixture
def refused(tmp_path):
    """Gives what is said of a table with this text."""

    def call(text, suffix):
        path = tmp_path / f"rows.{suffix}"
        path.write_text(text)
        with pytest.raises(ConfigError) as error:
            list(read_rows(str(path)))
        return str(error.value)

    return call


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        ("id,x,id\n1,2,3\n", "csv"),
        ("id\tx\tid\n1\t2\t3\n", "tsv"),
        ('{"id": 0}\n{"id": 1, "x": 2, "id": 3}\n', "jsonl"),
        ('{"x": {"id": 1, "id": 3}}\n', "jsonl"),
    ],
)
def test_two_columns_of_one_name_are_refused(refused, text, suffix):
    assert "two columns are named 'id'; give each a name of its own" in refused(text, suffix)


def test_two_columns_of_one_name_of_a_parquet_file_are_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs the extra `table`")
    from pyarrow import parquet

    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_arrays([[1], [2]], names=["id", "id"]), path)
    with pytest.raises(ConfigError, match="two columns are named 'id'"):
        list(read_rows(str(path)))


def test_columns_without_a_name_may_repeat(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("id,,\n1,,\n")
    assert [row["id"] for row in read_rows(str(path))] == ["1"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 1 2}', "line 4, character 10, cannot be read: Expecting ',' delimiter"),
        ("[1]", "line 4 must be a JSON object, not '[1]'"),
        ('{"id": 1, "id": 2}', "line 4: two columns"),
        ('{"id": 1' + "0" * 9999 + "}", "line 4 cannot be read: Exceeds the limit"),
        ("[" * 99_999, "line 4 cannot be read: maximum recursion depth"),
    ],
)
def test_a_bad_line_is_named_by_its_number(refused, line, message):
    assert refused(f'{{"id": 0}}\n\n{{"id": 1}}\n{line}\n', "jsonl").startswith(message)


def test_a_cell_that_is_too_long_has_a_remedy(refused):
    said = refused(f"id,x\n1,a\n2,{'x' * 200_000}\n", "csv")
    assert said.startswith("line 3 cannot be read: field larger than field limit (131072); ")
    assert said.endswith("over 131,072 characters long into a file or into JSON lines")


@pytest.mark.parametrize("column", ["key", "class_name", "split"])
def test_nan_is_no_key_class_or_split(column):
    columns = Columns(**({"key": "id", "values": {"x": "txt"}} | {column: "empty"}))
    with pytest.raises(SampleError, match="the column 'empty' is empty"):
        list_rows([{"id": "a", "x": "b", "empty": NAN}], columns)


def test_nan_names_no_file(tmp_path):
    (tmp_path / "1.jpg").touch()
    path = tmp_path / "rows.jsonl"
    rows = [{"id": "a", "x": "1.jpg", "y": "1.jpg"}, {"id": "b", "x": "1.jpg", "y": NAN}]
    path.write_text("\n".join(map(json.dumps, rows)))
    columns = Columns(files={"x": "jpg", "y": "png"}, key="id", root=str(tmp_path))
    assert list_table(str(path), columns).catalog.field_counts() == {"jpg": 2, "png": 1}
