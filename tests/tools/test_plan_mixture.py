"""`lightning-shards plan` says of a mixture what its loaders will serve."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from lightning_shards import ShardDataModule
from lightning_shards.tools import plan
from lightning_shards.tools.plan_mixture_text import mixture_text
from tests.mixed_shards import COUNTS, mix_of

NAMES = ("web", "labels", "more")
SAMPLES = {name: sum(counts) for name, counts in COUNTS.items()}
CHANGES = [
    {"epoch": 1, "weights": {"web": 1, "labels": 1}, "over": 2},
    {"samples": 104, "weights": {"more": 1}},
]


@pytest.fixture
def config(tmp_path):
    """Writes a configuration of a mixture with rounds of 8 in epochs of 40 samples."""
    mix = mix_of(tmp_path / "shards", NAMES)

    def write(split=None, max_epochs=3, **changes):
        train = {"mix": mix, "round": 8, "sampling": "shuffled", "dataset_size": 40}
        data = {
            "train": train | (split or {}),
            "fields": {"image": "png", "label": "cls"},
            "decode": {"image": "gray"},
            "batch_size": 3,
            "num_workers": 0,
            "loader": {"cache_dir": str(tmp_path / "cache")},
        }
        path = tmp_path / "config.yaml"
        trainer = {"max_epochs": max_epochs}
        path.write_text(yaml.safe_dump({"trainer": trainer, "data": data | changes}))
        return path

    write.mix = mix
    return write


@pytest.fixture
def run(run_json):
    def mixture_of(*arguments):
        status, document = run_json(plan.main, arguments)
        assert status == 0
        return document["mixture"]

    return mixture_of


@pytest.fixture
def text(capsys):
    def printed(*arguments):
        plan.main(list(map(str, arguments)))
        return capsys.readouterr().out

    return printed


def served(path, world_size, epochs):
    """Components of the rows that ranks are served: epochs of steps, each a list of batches."""
    module = ShardDataModule.from_config(path)
    loaders = [
        module.loader("train", rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    found = []
    for epoch in range(epochs):
        for loader in loaders:
            loader.set_epoch(epoch)
        steps = zip(*loaders, strict=True)
        found.append([[batch["__component__"].tolist() for batch in step] for step in steps])
    return found


def bounds(batches):
    """The least and the most rows of each component, by their names in the order of the file."""
    counts = [np.bincount(batch, minlength=3) for batch in batches]
    least, most = np.min(counts, axis=0).tolist(), np.max(counts, axis=0).tolist()
    names = sorted(NAMES)  # as YAML was dumped
    return dict(zip(names, least, strict=True)), dict(zip(names, most, strict=True))


@pytest.mark.parametrize("reader", ["indexed", "stream"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_the_numbers_are_those_of_the_loaders(config, run, reader, world_size):
    split = {"reader": reader, "schedule": CHANGES}
    if reader == "stream":
        split["sampling"] = "resampled"
    path = config(split)
    found = run("--config", path, "--world-size", world_size)
    assert [stage["begin"] for stage in found["stages"]] == [0, 16, 40, 104]
    epochs = served(path, world_size, 3)
    for stage, end in zip(found["stages"], [16, 40, 104, 120], strict=True):
        steps = [
            step
            for epoch, of_epoch in enumerate(epochs)
            for number, step in enumerate(of_epoch)
            if stage["begin"] <= 40 * epoch + number * 3 * world_size < end
        ]
        [world] = stage["worlds"]
        in_step, in_batch = world["step"], world["batch"]
        rows = [[row for batch in step for row in batch] for step in steps]
        assert (in_step["least"], in_step["most"]) == bounds(rows)
        batches = [batch for step in steps for batch in step]
        assert (in_batch["least"], in_batch["most"]) == bounds(batches)
        assert in_step["is_complete"]
        assert in_step["steps_counted"] == len(steps)


def test_the_run_and_each_whole_epoch_of_a_stage_are_counted_by_component(config, run):
    found = run("--config", config({"schedule": CHANGES}), "--world-size", 1)
    assert (found["round"], found["unit"], found["max_epochs"]) == (8, 1, 3)
    in_run = {name: component["in_run"] for name, component in found["components"].items()}
    # Two rounds of 5, 2 and 1; 24 samples of 9, 6 and 1 parts, of which 1.5 are rounded to 2; eight
    # rounds of halves; and two of one component alone.
    assert in_run == {"web": 10 + 13 + 32, "labels": 4 + 9 + 32, "more": 2 + 2 + 16}
    known = {name: component["samples"] for name, component in found["components"].items()}
    assert known == SAMPLES
    of_epochs = [stage["in_epoch"] for stage in found["stages"]]
    assert of_epochs == [None, None, {"web": 20, "labels": 20, "more": 0}, None]


def test_what_is_dropped_is_told_by_component(config, run, text):
    path = config()
    found = run("--config", path, "--world-size", "1,2,5,8")
    assert [world["dropped"] for world in found["worlds"]] == [1, 4, 10, 16]
    slots = ShardDataModule.from_config(path).source("train").order.slots
    for world in found["worlds"]:
        last = slots.components(0, 40 - world["dropped"], 40)
        wanted = np.bincount(last, minlength=3).tolist()
        assert list(world["dropped_of_components"].values()) == wanted
        for size in world["sizes_without_drop"]:
            even = run(
                "--config", config({"dataset_size": size}), "--world-size", world["world_size"]
            )
            assert even["worlds"][0]["dropped"] == 0
    out = text("--config", config(), "--world-size", "1,2,5,8")
    assert out.count("which the passes skip") == 4
    assert (
        "note: with 8 ranks an epoch drops 16 samples (epoch 0: labels 4, more 2, web 10), 48 in"
        in out
    )
    assert "in a new run dataset_size=24 or 48 drops none" in out
    assert "remainder='balanced'" not in out


def test_a_limit_of_the_trainer_cuts_epochs(config, run, text):
    path = config()
    limited = yaml.safe_load(path.read_text())
    limited["trainer"]["limit_train_batches"] = 0.5
    path.write_text(yaml.safe_dump(limited))
    [world] = run("--config", path)["worlds"]
    assert (world["steps"], world["dropped"]) == (6, 40 - 6 * 3)
    [stage] = run("--config", path)["stages"]
    assert stage["worlds"][0]["step"]["steps_counted"] == 3 * 6
    out = text("--config", path)
    assert "note: with 1 rank an epoch ends after 6 steps and drops 22 samples (epoch 0: " in out
    assert "66 in 3 epochs, which the passes skip\n" in out


def test_the_tables_name_weights_passes_and_batches(config, text):
    out = text("--config", config(batch_size=8), "--world-size", "1,5")
    assert out.startswith("train: 40 samples an epoch from 8 shards, ")
    assert out[out.index("mixture in") :] == (
        "mixture in rounds of 8 samples\n"
        "component  samples  shards  in 3 epochs  passes\n"
        "labels           6       2           30       5\n"
        "more             7       2           15   2.143\n"
        "web             17       4           75   4.412\n"
        "\n"
        "weights from epoch 0 on\n"
        "component  weight   share  an epoch  passes  1 rank: a step  5 ranks: a step  a batch\n"
        "labels          2  25.00%        10   1.667               2               10        2\n"
        "more            1  12.50%         5  0.7143               1                5        1\n"
        "web             5  62.50%        25   1.471               5               25        5\n"
    )


def test_shares_that_are_not_whole_in_a_round_are_told(config, text):
    out = text("--config", config({"schedule": [{"epoch": 1, "weights": {"web": 2, "more": 1}}]}))
    assert out.count("rounded up or down") == 1
    told = "note: a round holds the shares of 2 components rounded up or down; in a new run round=3"
    assert told in out[out.index("weights from epoch 1 on") :]


def test_stages_are_told_by_where_they_begin(config, text):
    schedule = [*CHANGES, {"epoch": 3, "weights": {"web": 1}}]
    out = text("--config", config({"schedule": schedule}))
    assert "weights from sample 16 of the run, in epoch 0, on" in out
    assert "weights from epoch 1 on" in out
    assert "note: the run ends before the weights from epoch 3 on hold" in out
    endless = text("--config", config({"schedule": schedule}, max_epochs=-1))
    assert "weights from epoch 3 on" in endless
    assert "the run ends" not in endless
    assert "component  samples  shards\n" in endless


def test_a_long_way_between_weights_is_shown_in_part(config, run, text):
    schedule = [{"epoch": 12, "weights": {"web": 1}, "over": 12}]
    path = config({"schedule": schedule}, max_epochs=20)
    assert len(run("--config", path)["stages"]) == 13
    out = text("--config", path)
    assert out.count("weights from ") == 10
    assert "note: 3 more stages in the document of --json" in out


def test_a_run_that_is_counted_in_part_says_how_far(config, text, monkeypatch):
    monkeypatch.setattr("lightning_shards.tools.plan_mixture._SAMPLES_COUNTED", 60)
    out = text("--config", config(), "--world-size", "1,2")
    rank, ranks = (
        f"note: with {n} the least and the most are those of the first"
        for n in ("1 rank", "2 ranks")
    )
    assert f"{rank} 20 steps from there on" in out
    assert f"{ranks} 10 steps from there on" in out
    even = text("--config", config(batch_size=8), "--world-size", "1,5")
    assert "those of the first" not in even


def test_bytes_are_those_of_the_components_in_an_epoch(config, run_json):
    """As many samples of each component are read as an epoch holds, by its own shards' sizes."""
    path = config(batch_size=8)
    _, document = run_json(plan.main, ("--config", path, "--world-size", "1"))
    sizes = {
        name: sum(Path(url).stat().st_size for url in config.mix[name]["urls"]) for name in NAMES
    }
    held = {"web": 25, "labels": 10, "more": 5}
    wanted = sum(sizes[name] * held[name] / SAMPLES[name] for name in NAMES)
    [row] = document["epochs"]
    assert row["bytes_read"] == pytest.approx(wanted, abs=2)
    assert row["samples_per_node"] == pytest.approx(40)
    assert row["shards_per_rank"] == 8


def test_shuffle_buffers_of_a_stream_are_those_of_all_components(config, run_json):
    mix = {name: each | {"shuffle_buffer": 2} for name, each in config.mix.items()}
    path = config({"mix": mix, "reader": "stream", "sampling": "resampled"})
    _, document = run_json(plan.main, ("--config", path, "--world-size", "1"))
    sizes = {
        name: sum(Path(url).stat().st_size for url in config.mix[name]["urls"]) for name in NAMES
    }
    wanted = sum(2 * sizes[name] / SAMPLES[name] for name in NAMES)
    assert document["epochs"][0]["buffer_bytes"] == pytest.approx(wanted, abs=2)


def test_an_index_of_one_data_set_is_refused(config, tmp_path, capsys):
    (tmp_path / "index.json").write_text(json.dumps({"shardlist": [], "wids_version": 1}))
    with pytest.raises(SystemExit):
        plan.main(["--config", str(config()), "--index", str(tmp_path / "index.json")])
    told = (
        "--index stands for the shards of one data set, and 'train' is a mix of labels, more, web"
    )
    assert told in capsys.readouterr().err


def test_a_plan_of_one_data_set_has_no_mixture(config, run):
    urls = config.mix["web"]["urls"]
    assert (
        run("--config", config({"mix": None, "round": None, "dataset_size": None, "urls": urls}))
        is None
    )
    assert mixture_text({"mixture": None}) == []
