"""Remote tables of joins: fetched once, as one version, and nothing secret is told or kept."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import FileAccessError, IndexMismatchError
from tests.remote.conftest import options_of, url_of
from tests.remote.published import COUNTS

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

NUM = sum(COUNTS)
TEXTS = [f"value {number}" for number in range(NUM)]
SECRETS = ("s3cr3t", "passw0rd")


@pytest.fixture
def put_table(tmp_path, server):
    """Puts a table to the server, in which the value of sample i is "value i"."""

    def put(name="t.parquet", texts=TEXTS):
        rows = np.random.default_rng(0).permutation(len(texts))
        columns = {"__key__": [f"{row:06d}" for row in rows], "t": [texts[row] for row in rows]}
        parquet.write_table(pa.table(columns), tmp_path / "made.parquet", compression="none")
        server.objects[f"data/{name}"] = (tmp_path / "made.parquet").read_bytes()
        return len(server.objects[f"data/{name}"])

    return put


@pytest.fixture
def make(local, server, tmp_path):
    """Makes modules that join a remote table."""

    def made(join, urls=local, num_workers=0):
        return ShardDataModule(
            SplitConfig(urls, sampling="sequential", join={"t": join}, remainder="balanced"),
            fields={"label": "cls"},
            batch_size=4,
            num_workers=num_workers,
            loader=LoaderConfig(
                storage_options=options_of(server), cache_dir=str(tmp_path / "cache")
            ),
        )

    return made


def values(module):
    loader = module.loader("train", rank=0, world_size=1)
    return [text for batch in loader for text in batch["t"]]


def sizes_asked_for(server, size):
    """The bytes of the table that each request asks for."""
    ranges = [each.headers["range"] for each in server.asked if "t.parquet" in each.path]
    ends = [each.removeprefix("bytes=").split("-") for each in ranges]
    return [min(int(end), size - 1) - int(begin) + 1 for begin, end in ends]


@pytest.mark.parametrize(("face", "num_workers"), [("http", 2), ("s3", 0)])
def test_remote_shards_are_joined_with_remote_tables(
    make, server, put_table, published_shards, face, num_workers
):
    put_table()
    assert values(make(url_of(server, face, "t.parquet"), published_shards, num_workers)) == TEXTS


def test_remote_tars_are_a_table(make, server, write_tar, tmp_path):
    """They need no member tables beside them."""
    for number, samples in enumerate([range(9, NUM), range(9)]):
        write_tar(tmp_path / "made.tar", [(f"{n:06d}.txt", TEXTS[n].encode()) for n in samples])
        server.objects[f"data/more-{number}.tar"] = (tmp_path / "made.tar").read_bytes()
    join = {"table": url_of(server, "s3", "more-{0..1}.tar"), "column": "txt"}
    assert values(make(join)) == TEXTS


def test_a_node_fetches_a_table_once(make, server, put_table, tmp_path):
    size = put_table(texts=[f"{n:099999d}" for n in range(NUM)])
    url = url_of(server, "http", "t.parquet")
    for _ in range(2):  # a rank, and the next one
        source = make(url).source("train")
    source.prepare()
    assert sum(sizes_asked_for(server, size)) <= size + 3 * (1 << 16)  # and the footers
    names = {path.suffix for path in (tmp_path / "cache" / "joins").iterdir()}
    assert names == {".arrow", ".parquet", ".crc32", ".lock"}
    server.asked.clear()
    make(url).source("train").prepare()
    again = sizes_asked_for(server, size)
    assert sum(again) <= (1 << 16) + 9
    assert len(again) <= 3


def test_a_table_that_is_replaced_before_the_join_is_made(make, server, put_table, tmp_path):
    put_table()
    source = make(url_of(server, "http", "t.parquet")).source("train")
    put_table(texts=[text.upper() for text in TEXTS])  # of the same size
    with pytest.raises(IndexMismatchError, match=r"t\.parquet was replaced while the run looked"):
        source.prepare()


def test_bad_remote_tables_are_refused_without_a_secret(make, server, caplog):
    server.objects["data/t.parquet"] = b"x" * 99
    url = url_of(server, "http", "t.parquet").replace("http://", "http://me:passw0rd@")
    with pytest.raises(FileAccessError, match=r"t\.parquet cannot be read as Parq") as caught:
        make(url).source("train")
    told = repr(caught.value) + str(caught.value.__context__) + str(caught.value.__cause__)
    assert not any(secret in told + caplog.text for secret in SECRETS)
