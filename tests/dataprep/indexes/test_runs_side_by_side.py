"""Two runs of `index` in one folder: neither loses what the other has written meanwhile."""

import json
import threading
from functools import partial

import pytest

from lightning_shards.dataprep.indexes import indexing
from lightning_shards.dataprep.indexes.indexing import write_index
from lightning_shards.dataprep.indexes.wanted_files import IndexFiles
from lightning_shards.dataprep.inspection.survey import survey
from lightning_shards.errors import ConfigError
from lightning_shards.shards.private_files import CacheFolder


@pytest.fixture
def write(tmp_path, write_shards):
    """Writes an index of this format for each of two shards; the second within the first one."""
    first, second = write_shards([3, 4], tmp_path / "data")
    cache = CacheFolder(tmp_path / "cache")
    surveys = [survey([url], cache=cache, show_progress=False) for url in (first, second)]

    def call(file_format, monkeypatch):
        files = IndexFiles(cache, (file_format,))
        caught = []

        def write_second():
            try:
                write_index(surveys[1], files)
            except ConfigError as error:
                caught.append(error)

        other = threading.Thread(target=write_second)

        def put(real, *given):
            if threading.current_thread() is not other and other.ident is None:
                other.start()
                other.join(0.5)  # it ends by then, or waits for this run
            real(*given)

        for name in ("replace_file", "write_wids"):
            monkeypatch.setattr(indexing, name, partial(put, getattr(indexing, name)))
        write_index(surveys[0], files)
        other.join()
        return caught

    return call


def test_both_runs_are_in_sizes_json(write, tmp_path, monkeypatch):
    assert write("sizes", monkeypatch) == []
    sizes = json.loads((tmp_path / "data" / "sizes.json").read_text())
    assert sizes == {"000.tar": 3, "001.tar": 4}


def test_the_second_run_does_not_replace_the_wids_json_of_the_first(write, tmp_path, monkeypatch):
    [error] = write("wids", monkeypatch)
    assert "also indexes '000.tar'" in str(error)
    listed = json.loads((tmp_path / "data" / "wids.json").read_text())["shardlist"]
    assert [entry["url"] for entry in listed] == ["000.tar"]
