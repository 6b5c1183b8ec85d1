"""How many samples remote shards hold, where the trainer asks for it."""

import shutil
from pathlib import Path

import pytest

from lightning_shards import SplitConfig
from lightning_shards.errors import ConfigError
from tests.readers.file_server import serving

pytestmark = pytest.mark.network


@pytest.fixture
def urls(pack_shards):
    return pack_shards([4, 3, 4])


def test_remote_shards_of_a_counted_folder_have_its_size(make_module, urls, tmp_path):
    folder = Path(urls[0]).parent
    (folder / "__len__").write_text("11\n")
    with serving(folder) as server:
        url = f"http://127.0.0.1:{server.server_port}/{Path(urls[0]).name}"
        loader = make_module(SplitConfig(url)).loader("train")
        assert loader.epochs.samples == 11
        assert sum(len(batch["__key__"]) for batch in loader) == 10
        assert len(make_module(SplitConfig(url, dataset_size=9)).loader("train")) == 4
        assert server.asked.count("/__len__") == 1  # where it is needed, once
        with pytest.raises(ConfigError, match="'shuffled' of 'train' needs the number of samples"):
            make_module(SplitConfig(url, sampling="shuffled")).loader("train")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"'resampled' of 'train' needs the number of .*set dataset_size"),
        ({"sampling": "shuffled", "dataset_size": 9}, "'shuffled' of 'train' needs the number of"),
        ({"sampling": "sequential", "dataset_size": 9}, "'sequential' of .* needs the .*sizes"),
    ],
)
def test_what_remote_shards_without_counts_need_is_said(
    settings, message, make_module, urls, tmp_path
):
    (tmp_path / "uncounted").mkdir()
    shard = Path(shutil.copy(urls[0], tmp_path / "uncounted"))
    with serving(shard.parent) as server:
        url = f"http://127.0.0.1:{server.server_port}/{shard.name}"
        with pytest.raises(ConfigError, match=message):
            make_module(SplitConfig(url, **settings)).loader("train")
