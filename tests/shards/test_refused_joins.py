"""Tables and settings that cannot be joined: one sentence with the value and the remedy."""

import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from lightning_shards import SplitConfig
from lightning_shards.errors import ConfigError, FileAccessError, ShardNotFoundError
from lightning_shards.shards.joins.settings import join_settings

URLS = "data/{0..3}.tar"
BAD_SETTINGS = {
    "no table": ({"t": {"key": "id"}}, "join 't' has no table; it takes a table, key and column"),
    "unknown setting": ({"t": {"table": "a.parquet", "keys": "id"}}, r"has the settings \{'keys'"),
    "key": ({"t": {"table": "a.parquet", "key": 3}}, r"settings \{'key': 3\}; it takes"),
    "another format": ({"t": "a.csv"}, "name either Parquet files, which end in .parquet"),
    "a command": ({"t": "pipe:cat a.parquet"}, r"\['pipe:cat ...'\]; name either Parquet files"),
    "tars without a suffix": ({"t": "a.tar"}, "as in column: txt, and no key; got column=None"),
    "a list": (["x"], "join must be a mapping"),
}


@pytest.mark.parametrize(("join", "message"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_settings_are_refused_before_anything_is_read(join, message):
    with pytest.raises(ConfigError, match=message):
        SplitConfig(URLS, join=join)


@pytest.mark.parametrize("more", [{"reader": "stream"}, {"stages": [iter]}])
def test_a_stream_has_no_joins(more):
    with pytest.raises(ConfigError, match=r"join=\['t'\] does not go with .*leave one of them out"):
        SplitConfig(URLS, join={"t": "t.parquet"}, **more)


BESIDE_FIELDS = {
    "a reserved name": ({"__id__": "t.parquet"}, {}, "let no .* name begin with '__' or '.'"),
    "a field's name": ({"label": "t.parquet"}, {}, "'label' has the name of a field that comes"),
    "an unsafe decoder": ({"t": {"table": "t.tar", "column": "pkl"}}, {}, "decoded as 'pickle'"),
    "a default without use": (
        {"t": {"table": "t.parquet", "missing": "raise"}},
        {"defaults": {"t": 1}},
        r"defaults names 't', and the optional fields are \[\]; .* or leave its default out",
    ),
}


@pytest.mark.parametrize(("join", "more", "message"), BESIDE_FIELDS.values(), ids=BESIDE_FIELDS)
def test_a_join_goes_with_the_other_settings(join, more, message, make_module):
    with pytest.raises(ConfigError, match=message):
        make_module(SplitConfig(URLS, join=join), **more)


@pytest.fixture
def prepare(make_module, pack_shards, tmp_path):
    """Makes a join with a table that is written, or that lies in this folder."""

    def made(table, more=(), **settings):
        if isinstance(table, pa.Table):
            parquet.write_table(table, tmp_path / "t.parquet")
            table = "t.parquet"
        join = {"t": {"table": f"{tmp_path}/{table}", **dict(more)}}
        module = make_module(SplitConfig(pack_shards([2, 1]), join=join), **settings)
        module.source("train").prepare()

    return made


def rows(values, keys=("000000",), names=("__key__", "t")):
    return pa.table([pa.array(keys), pa.array(values)], list(names))


BAD_TABLES = {
    "doubled keys": (
        rows([1, 2, 3, 4], ["000001", "a", "b", "000001"]),
        {},
        r"two rows of .*t\.parquet have the same key '000001'; leave one of them out",
    ),
    "no key column": (
        rows([1], names=["id", "t"]),
        {},
        r"has 0 columns '__key__' where one is needed; name one of \['id', 't'\] in `key`",
    ),
    "nested keys": (rows([1], [["000000"]]), {}, r"1 row, first '\[\"000000\"\]', and no value"),
    "no column": (rows([1]), {"column": "u"}, r"has 0 columns 'u' .*'__key__', 't'\] in `column`"),
    "dates": (
        rows(pa.array([1], pa.timestamp("s"))),
        {},
        r"column 't' of .*t\.parquet cannot be taken: .*timestamp.*; write keys as texts",
    ),
    "a number that fits no int64": (
        rows(pa.array([2**63], pa.uint64())),
        {},
        "cannot be taken: Integer value 9223372036854775808 not in range",
    ),
    "nulls in lists": (rows([[1.5, None]]), {}, "numbers in its lists are null"),
    "no match": (
        rows([1, 2], ["a", "b"]),
        {},
        r"2 rows, first 'a', and no value 't' .* '000000' \(#shard-000000\.tar:0\); name the colu",
    ),
}


@pytest.mark.parametrize(("table", "more", "message"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_table_is_refused_before_the_first_batch(table, more, message, prepare, tmp_path):
    with pytest.raises(ConfigError, match=message):
        prepare(table, more)
    assert not list((tmp_path / "cache" / "joins").glob("*.arrow"))


def test_numbers_take_no_decoder_of_other_bytes(prepare):
    with pytest.raises(ConfigError, match=r"holds numbers .* \(float\), and decode='float64' take"):
        prepare(rows([0.123456]), decode={"t": "float64"})


def test_files_of_one_table_hold_one_type(prepare, tmp_path):
    for number, size in enumerate((pa.int8(), pa.uint32())):
        table = rows(pa.array([[1]], pa.list_(size)), [f"00000{number}"])
        parquet.write_table(table, tmp_path / f"{number}.parquet")
    with pytest.raises(ConfigError, match=r"1\.parquet cannot be taken: it holds .* of one type"):
        prepare("{0,1}.parquet")


def test_pages_are_held_against_their_checksums(prepare, tmp_path):
    """Parquet-mr writes them by default, and pyarrow where it is asked."""
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    path, table = tmp_path / "t.parquet", rows(["value", "other"], ["000000", "000001"])
    parquet.write_table(table, path, write_statistics=False, **options)
    data = path.read_bytes()
    assert data.count(b"value") == 1
    path.write_bytes(data.replace(b"value", b"valve"))
    with pytest.raises(FileAccessError, match=r"t\.parquet cannot be read as Parquet.*[Cc]hecksum"):
        prepare("t.parquet")


def test_a_table_that_does_not_exist_is_not_found(prepare):
    for name in ("t.parquet", "t-*.parquet"):
        with pytest.raises(ShardNotFoundError, match=r"the table of join 't': .*t(-\*)?\.parquet"):
            prepare(name)


def test_tars_without_such_members_have_no_value(prepare, write_tar, tmp_path):
    write_tar(tmp_path / "t.tar", [("000000.json", b"1"), ("000000.note.txt", b"1")])
    with pytest.raises(
        ConfigError, match=r"t\.tar has 1 row, .* no value 'txt' .* another `column`"
    ):
        prepare("t.tar", {"column": "txt"})


def test_parquet_without_pyarrow_names_the_extra(monkeypatch, prepare, tmp_path):
    parquet.write_table(rows([1]), tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'lightning-shards\[table\]'"):
        prepare("t.parquet")


def test_a_column_is_taken_by_its_very_name(make_module, pack_shards, tmp_path):
    nested = pa.table({"a": [{"b": "wrong"}], "__key__": ["000000"], "a.b": ["right"]})
    parquet.write_table(nested, tmp_path / "t.parquet")
    join = {"t": {"table": str(tmp_path / "t.parquet"), "column": "a.b"}}
    split = SplitConfig(pack_shards([1]), join=join, sampling="sequential")
    (batch,) = make_module(split, batch_size=1).loader("train", rank=0, world_size=1)
    assert batch["t"] == ["right"]


def test_paths_may_name_tables_and_lists_of_keys(tmp_path):
    path = tmp_path / "t.parquet"
    split = SplitConfig(URLS, join={"t": [path]}, exclude=[tmp_path / "keys.txt"])
    assert join_settings(split.join)[0].table == (str(path),)
    assert split.exclude == [str(tmp_path / "keys.txt")]
    assert SplitConfig(URLS, exclude=tmp_path / "keys.txt").exclude == str(tmp_path / "keys.txt")
