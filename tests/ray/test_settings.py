"""The settings of `pool: ray`, what is refused, and what imports Ray."""

import sys

import pytest

from lightning_shards import LoaderConfig, RayConfig, ShardDataModule
from lightning_shards.build.loaders import make_pool
from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Place


def with_actors(urls, **settings):
    return ShardDataModule(urls, fields={"x": "cls"}, **settings, loader=LoaderConfig(pool="ray"))


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (LoaderConfig, {"ray": RayConfig("local")}, "goes with pool='ray', not 'processes'"),
        (LoaderConfig, {"pool": "ray", "threads_per_worker": 2}, "threads_per_worker=2 goes with"),
        (LoaderConfig, {"pool": "ray", "pin_memory": True}, "pin_memory=True goes with"),
        (RayConfig, {"address": "ray://head:10001"}, "'ray://head:10001' would send each byte"),
        (RayConfig, {"cpus_per_worker": -1}, "must be a number of at least 0, got -1"),
        (RayConfig, {"placement": "spread"}, "ray.placement must be one of"),
        (with_actors, {"urls": "a.tar", "num_workers": 0}, "num_workers of at least 1, got 0"),
    ],
)
def test_wrong_settings_are_refused(make, settings, words):
    with pytest.raises(ConfigError, match=words):
        make(**settings)


def test_where_ray_is_not_installed_the_error_says_how_to_get_it(
    pack_shards, make_source, monkeypatch
):
    monkeypatch.delitem(sys.modules, "lightning_shards.workers.ray.pool", raising=False)
    monkeypatch.delitem(sys.modules, "lightning_shards.workers.ray.cluster", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs Ray, which is not installed.*\[ray\]"):
        make_pool(LoaderConfig(pool="ray"), 1, make_source(pack_shards([4])), Place())


def test_a_configuration_names_the_cluster(pack_shards):
    ray = {"address": "head:6379", "placement": "PACK"}
    settings = {"train": pack_shards([4]), "fields": {"x": "cls"}, "allow_unsafe": ["ray"]}
    module = ShardDataModule.from_config(settings | {"loader": {"pool": "ray", "ray": ray}})
    assert module.loader_config.ray == RayConfig("head:6379", placement="PACK")
