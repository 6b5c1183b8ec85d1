"""`pack` of tables, and of tars that others wrote."""

import csv
import json
import shutil
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.tools.packing.conftest import packed_samples


@pytest.fixture
def rows(photos):
    return [
        {
            "path": str(path),
            "caption": f"{number}, é {path.parent.name}",
            "id": f"id/{number}.x",
            "part": "val" if number % 5 == 0 else "train",
        }
        for number, path in enumerate(sorted(photos.glob("*/*.JPEG")))
    ]


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def table(request, tmp_path, rows):
    kind = request.param
    path = tmp_path / f"rows.{kind}"
    if kind == "csv":
        return write_csv(path, rows)
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    return path


@pytest.mark.parametrize("table", ["csv", "jsonl", "parquet"], indirect=True)
def test_a_table_names_files_values_keys_and_splits(run, table, rows, photos):
    given = ["--files", "path", "--values", "caption=txt", "--key", "id", "--split-column", "part"]
    report = run(table, *given)
    for split in ("train", "val"):
        expected = {
            row["id"].replace(".", "%2E"): {
                "jpeg": Path(row["path"]).read_bytes(),
                "txt": row["caption"].encode(),
            }
            for row in rows
            if row["part"] == split
        }
        assert packed_samples(report, split) == expected


def test_files_are_below_the_table_and_make_the_keys(run, rows, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "in")
    below = [row | {"path": str(Path(row["path"]).relative_to(photos))} for row in rows]
    report = run(write_csv(tmp_path / "in" / "rows.csv", below), "--files", "path=jpg")
    assert {unquote(key): fields for key, fields in packed_samples(report).items()} == {
        row["path"].removesuffix(".JPEG"): {"jpg": (photos / row["path"]).read_bytes()}
        for row in below
    }


def test_values_that_are_no_text_are_stored_as_json_and_empty_ones_not(run, tmp_path):
    lines = [
        {"id": "a", "x": {"é": [1]}, "y": 0.5, "z": None},
        {"id": "b", "x": [], "y": "", "z": 0},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    columns = [f"--values={name}={name}.json" for name in "xyz"]
    report = run(path, "--key", "id", *columns)
    assert packed_samples(report) == {
        "a": {"x.json": '{"é": [1]}'.encode(), "y.json": b"0.5"},
        "b": {"x.json": b"[]", "z.json": b"0"},
    }
    assert report["data_sets"][""]["fields"] == {"x.json": 2, "y.json": 1, "z.json": 1}


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ('{"id": 0, "x": 1}\n{"id": 1 2}', ["--values", "x=txt"], "row 2: Expecting ',' delimiter"),
        ('{"id": NaN, "x": 1}', ["--values", "x=txt"], "row 1: the column 'id' is empty"),
        ("id,x\n1,a\n", ["--values", "y=txt"], "row 1: the table has no column 'y', but id, x"),
        ("id,x,x\n1,a,b\n", ["--values", "x=txt"], "the table has two columns 'x', but id, x, x"),
        ("id,x\n1,a\n2\n", ["--values", "x=txt"], "row 2: it has not as many cells"),
        ("id,x\n,a\n", ["--values", "x=txt"], "row 1: the column 'id' is empty"),
        ("id,x\n1,none.jpg\n", ["--files", "x"], "No such file or directory: '"),
        ("id,x\n1,a\n", [], "sample '1' has no field"),
        ("id,x\n1,a\n", ["--values", "x"], "'' cannot be a field"),
    ],
)
def test_tables_that_make_no_samples_are_refused(refused, tmp_path, text, arguments, message):
    path = tmp_path / ("rows.jsonl" if text[0] == "{" else "rows.csv")
    path.write_text(text)
    assert message in refused(path, "--key", "id", *arguments)
