"""What webdataset reads and this package refuses on purpose, and the page's ways round it."""

import gzip
import pickle
import tarfile
from pathlib import Path

import pytest
from webdataset.compat import WebDataset
from webdataset.writer import TarWriter

from lightning_shards import DamagedShardError, SplitConfig
from lightning_shards.errors import ShardError, UnsafeError
from lightning_shards.tools import pack, reshard

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

READERS = pytest.mark.parametrize("reader", ["indexed", "stream"])


@pytest.fixture
def tars(tmp_path):
    """Two tars of three samples each, with a pickle in each sample."""
    paths = [tmp_path / f"{shard}.tar" for shard in range(2)]
    for shard, path in enumerate(paths):
        with TarWriter(str(path)) as writer:
            for number in range(3 * shard, 3 * shard + 3):
                name = f"{number:03d}"
                writer.write({"__key__": name, "cls": str(number), "pkl": pickle.dumps([number])})
    return paths


@pytest.fixture
def ours(make_module):
    """Keys and values of a field, as we read them."""

    def read(urls, reader, suffix="cls", **settings):
        split = SplitConfig(urls, reader=reader, sampling="sequential")
        module = make_module(val=split, fields={"value": suffix}, batch_size=6, **settings)
        batches = list(module.loader("val"))
        return {
            key: value if isinstance(value, list) else int(value)
            for batch in batches
            for key, value in zip(batch["__key__"], batch["value"], strict=True)
        }

    return read


def theirs(urls, suffix="cls"):
    dataset = WebDataset(urls, shardshuffle=False).decode()
    return {sample["__key__"]: sample[suffix] for sample in dataset}


@READERS
def test_pickles_are_read_if_they_are_allowed(tars, ours, reader):
    urls = list(map(str, tars))
    with pytest.raises(UnsafeError, match="allow_unsafe"):
        ours(urls, reader, "pkl")
    read = ours(urls, reader, "pkl", allow_unsafe=["pickle"])
    assert read == theirs(urls, "pkl")
    assert read["004"] == [4]


def test_pipes_are_run_if_they_are_allowed(tars, ours, make_module):
    urls = [f"pipe:cat {tars[0]}"]
    with pytest.raises(UnsafeError, match="allow_unsafe"):
        ours(urls, "stream")
    split = SplitConfig(urls, dataset_size=60)
    module = make_module(split, fields={"value": "cls"}, batch_size=60, allow_unsafe=["pipe"])
    (batch,) = module.loader("train")
    read = dict(zip(batch["__key__"], batch["value"].tolist(), strict=True))
    assert read == theirs(urls) == {"000": 0, "001": 1, "002": 2}


@READERS
def test_glued_tars_are_taken_apart_and_packed(tars, ours, tmp_path, reader):
    glued = tmp_path / "glued.tar"
    glued.write_bytes(b"".join(path.read_bytes() for path in tars))
    with pytest.raises(DamagedShardError, match="two archives glued together"):
        ours(str(glued), reader)
    assert theirs(str(glued)) == theirs(str(tars[0]))  # the rest is lost without a word

    with tarfile.open(glued, ignore_zeros=True) as archive:
        archive.extractall(tmp_path / "files", filter="data")
    pack.main(
        [str(tmp_path / "files"), "--no-classes", "--order", "source", *written(tmp_path, "packed")]
    )
    expected = theirs(list(map(str, tars)))
    assert ours(str(tmp_path / "packed" / "*.tar"), reader) == expected
    reshard.main([*map(str, tars), *written(tmp_path, "joined")])
    assert ours(str(tmp_path / "joined" / "*.tar"), reader) == expected


@READERS
def test_compressed_tars_are_refused_until_they_are_unpacked(tars, ours, tmp_path, reader):
    packed = tmp_path / "0.tar.gz"
    packed.write_bytes(gzip.compress(Path(tars[0]).read_bytes()))
    with pytest.raises(DamagedShardError, match="unpack it"):
        ours(str(packed), reader)
    plain = tmp_path / "0.tar"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    assert ours(str(plain), reader) == theirs(str(packed))


@READERS
def test_unknown_suffixes_are_raw_if_that_is_said(tmp_path, ours, reader):
    url = str(tmp_path / "a.tar")
    with TarWriter(url) as writer:
        writer.write({"__key__": "000", "odd": b"what"})
    with pytest.raises(ShardError, match="raw"):
        ours(url, reader, "odd")
    sample = next(iter(WebDataset(url, shardshuffle=False).decode()))
    split = {"decode": {"value": "raw"}, "collate_fn": whole}
    assert ours(url, reader, "odd", **split) == {"000": [sample["odd"]]}


def whole(samples):
    return {"value": [[sample["value"]] for sample in samples]}


def written(folder, name):
    """Options of a tool that writes."""
    return ["--out", str(folder / name), "--processes", "1", "--cache-dir", str(folder / "cache")]
