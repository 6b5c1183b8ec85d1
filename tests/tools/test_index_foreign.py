"""`lightning-shards index` reads the tars that other programs write as they are read elsewhere."""

import gzip
import json
import shutil
import subprocess
import tarfile
from functools import partial
from pathlib import Path

import pytest
from webdataset.writer import ShardWriter

from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore
from lightning_shards.tools import index
from tests.tools.conftest import write_members


@pytest.fixture
def run(run_here):
    return run_here(index.main)


def write_with_webdataset(folder):
    with ShardWriter(f"{folder}/%03d.tar", maxcount=3, verbose=0) as writer:
        for number in range(7):
            writer.write({"__key__": f"{number:04d}", "cls": number, "json": {"a": number}})


def write_like_img2dataset(folder):
    for shard in range(2):
        keys = [f"{shard:05d}{number:04d}" for number in (3, 0, 7)]  # in order of completion
        names = [f"{key}.{suffix}" for key in keys for suffix in ("jpg", "txt", "json")]
        write_members(folder / f"{shard:05d}.tar", [(name, b"{}") for name in names])
        stats = {"count": 10, "successes": 3, "failed_to_download": 7}
        (folder / f"{shard:05d}_stats.json").write_text(json.dumps(stats))


def write_with_gnu_tar(folder, tar_format):
    tree = folder / "tree"
    tree.mkdir()
    for number in range(4):
        (tree / f"{number}{'k' * 150 if tar_format != 'ustar' else ''}.cls").write_text("1")
        (tree / f"{number}{'k' * 150 if tar_format != 'ustar' else ''}.txt").write_text("two")
    command = ["tar", f"--format={tar_format}", "--sort=name", "-cf", "a.tar", "tree"]
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    shutil.rmtree(tree)


def write_with_bsdtar(folder):
    """`bsdtar -cf a.tar tree/*`, by version 3.6.2; not every machine has it."""
    packed = Path(__file__).with_name("made_by_bsdtar.tar.gz").read_bytes()
    (folder / "a.tar").write_bytes(gzip.decompress(packed))


def write_with_python(folder, tar_format):
    with tarfile.open(folder / "a.tar", "w", format=tar_format) as archive:
        for number in range(4):
            for suffix in ("cls", "txt"):
                info = tarfile.TarInfo(f"{'d' * 120}/é{number}.{suffix}")
                info.mtime = 1.5
                archive.addfile(info)


FOREIGN = {
    "webdataset": write_with_webdataset,
    "img2dataset": write_like_img2dataset,
    "bsdtar": write_with_bsdtar,
    **{
        f"GNU tar {kind}": partial(write_with_gnu_tar, tar_format=kind)
        for kind in ("gnu", "posix", "ustar")
    },
    "tarfile PAX": partial(write_with_python, tar_format=tarfile.PAX_FORMAT),
    "tarfile GNU": partial(write_with_python, tar_format=tarfile.GNU_FORMAT),
}


@pytest.mark.parametrize("writer", sorted(FOREIGN))
def test_tars_of_others_are_indexed_as_tarfile_and_webdataset_read_them(run, tmp_path, writer):
    folder = tmp_path / "data"
    folder.mkdir()
    FOREIGN[writer](folder)
    status, document = run(folder / "*.tar", "--format", "wids,dali", "--checksums")
    assert status == 0, document
    listed = json.loads((folder / "wids.json").read_text())["shardlist"]
    store = TableStore(CacheFolder(tmp_path / "cache"))
    for path, entry in zip(sorted(folder.glob("*.tar")), listed, strict=True):
        with tarfile.open(path) as archive:
            members = [each for each in archive if each.isreg()]
        keys = list(dict.fromkeys(each.name.partition(".")[0] for each in members))
        assert entry["nsamples"] == len(keys)
        table = store.table_of(path)
        assert [table.key(sample) for sample in range(table.num_samples)] == keys
        assert table.offsets.tolist() == [each.offset_data for each in members]
        assert table.sizes.tolist() == [each.size for each in members]
