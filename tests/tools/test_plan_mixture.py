"""`lightning-shards plan` says of a mixture what its components hold."""

import pytest
import yaml

from lightning_shards import ShardDataModule
from lightning_shards.tools import plan
from tests.mixed_shards import COUNTS, mix_of

NAMES = ("web", "labels", "more")  # with weights of 5, 2 and 1
SAMPLES = {name: sum(counts) for name, counts in COUNTS.items()}


@pytest.fixture
def config(tmp_path):
    """Writes a configuration of a mixture with rounds of 8 in epochs of 40 samples."""

    def write(max_epochs=3, **split):
        mix = mix_of(tmp_path / "shards", NAMES)
        train = {"mix": mix, "round": 8, "sampling": "shuffled", "dataset_size": 40}
        data = {
            "train": train | split,
            "fields": {"image": "png", "label": "cls"},
            "decode": {"image": "gray"},
            "batch_size": 8,
            "num_workers": 0,
            "loader": {"cache_dir": str(tmp_path / "cache")},
        }
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({"trainer": {"max_epochs": max_epochs}, "data": data}))
        return path

    return write


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_an_epoch_and_the_run_are_counted_by_component(config, run_json, reader):
    split = {"reader": reader, "schedule": [{"epoch": 1, "weights": {"web": 1, "labels": 1}}]}
    path = config(**split, sampling="resampled")
    status, found = run_json(plan.main, ("--config", path, "--world-size", "1"))
    assert status == 0
    parts = {part["component"]: part for part in found["components"]}
    assert {name: part["samples"] for name, part in parts.items()} == SAMPLES
    in_epoch = {name: part["in_epoch_0"] for name, part in parts.items()}
    assert in_epoch == {"web": 25, "labels": 10, "more": 5}
    in_run = {name: part["in_run"] for name, part in parts.items()}
    assert in_run == {"web": 25 + 40, "labels": 10 + 40, "more": 5}
    assert parts["web"]["passes_of_run"] == pytest.approx(65 / SAMPLES["web"])
    loader = ShardDataModule.from_config(path).loader("train", rank=0, world_size=1)
    served = [number for batch in loader for number in batch["__component__"].tolist()]
    assert [served.count(number) for number in range(3)] == list(in_epoch.values())


def test_the_table_names_the_passes_of_an_epoch_and_of_the_run(config, capsys):
    schedule = [{"epoch": 2, "weights": {"more": 1}}]
    plan.main(["--config", str(config(schedule=schedule)), "--world-size", "5"])
    assert capsys.readouterr().out.endswith(
        "\n"
        "component  samples  shards  in_epoch_0  passes_of_epoch_0  in_run  passes_of_run\n"
        "labels           6       2          10              1.667      20          3.333\n"
        "more             7       2           5             0.7143      50          7.143\n"
        "web             17       4          25              1.471      50          2.941\n"
    )
