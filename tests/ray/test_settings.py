"""The settings of `pool: ray`, what is refused, and what imports Ray."""

import sys

import pytest

from lightning_shards import LoaderConfig, RayConfig, ShardDataModule
from lightning_shards.build.loaders import make_pool
from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Place


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ray": RayConfig("local")}, "RayConfig.* goes with pool='ray', not 'processes'"),
        ({"pool": "ray", "threads_per_worker": 2}, "threads_per_worker=2 goes with"),
        ({"pool": "ray", "pin_memory": True}, "pin_memory=True goes with"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        LoaderConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"address": "ray://head:10001"}, "ray.address='ray://head:10001' would send each byte"),
        ({"cpus_per_worker": -1}, "ray.cpus_per_worker must be a number of at least 0, got -1"),
        ({"placement": "spread"}, "ray.placement must be one of"),
    ],
)
def test_wrong_settings_of_actors_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        RayConfig(**settings)


def test_no_actors_at_all_are_refused(pack_shards):
    with pytest.raises(ConfigError, match="pool='ray' needs num_workers of at least 1, got 0"):
        ShardDataModule(
            pack_shards([4]), fields={"x": "cls"}, num_workers=0, loader=LoaderConfig(pool="ray")
        )


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
