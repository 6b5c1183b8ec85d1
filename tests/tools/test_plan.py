"""`lightning-shards plan` says what the loader will do, and asks for it in time."""

import pytest
import yaml

from lightning_shards import ShardDataModule
from lightning_shards.plan.epoch import plan_epoch
from lightning_shards.plan.pieces import DataShape, Workers, footprint
from lightning_shards.tools import cache, plan
from tests.tools.conftest import write_samples

COUNTS = [7, 4, 12]


@pytest.fixture
def config(tmp_path):
    folder = write_samples(tmp_path / "data", COUNTS)

    def write(**changes):
        data = {
            "train": {"urls": str(folder / "*.tar"), "sampling": "shuffled"},
            "val": {"urls": str(folder / "*.tar")},
            "fields": {"image": "jpg", "label": "cls"},
            "batch_size": 2,
            "num_workers": 0,
            "loader": {"cache_dir": str(tmp_path / "cache"), "prefetch_factor": 3},
        }
        path = tmp_path / "config.yaml"
        trainer = {"devices": 2, "num_nodes": 2}
        path.write_text(yaml.safe_dump({"trainer": trainer, "data": data | changes}))
        return path

    write.shards = str(folder / "*.tar")
    return write


@pytest.fixture
def run(run_json):
    return lambda *arguments: run_json(plan.main, arguments)


@pytest.mark.parametrize("split", ["train", "val", "predict/few"])
def test_the_numbers_are_those_of_the_loader(config, run, split):
    sets = {"many": {"urls": "nowhere.tar"}, "few": config.shards}
    path = config(predict_sets=sets)
    status, document = run("--config", path, "--split", split, "--world-size", "1,2,3,8")
    assert (status, document["split"]) == (0, split)
    module = ShardDataModule.from_config(path)
    for row in document["epochs"]:
        world_size = row["world_size"]
        served = []
        for rank in range(world_size):
            loader = module.loader(split, rank=rank, world_size=world_size)
            batches = list(loader)
            assert len(batches) == row["steps"] == len(loader)
            served += [key for batch in batches for key in batch["__key__"]]
        assert len(set(served)) == row["served"] == sum(COUNTS) - row["dropped"]
        assert len(served) == row["served"] + row["repeated"]


def test_what_the_trainer_does_not_say_is_told(config, run, capsys):
    path = config()
    settings = yaml.safe_load(path.read_text())
    settings["trainer"] = {"devices": "auto"}
    path.write_text(yaml.safe_dump(settings))
    plan.main(["--config", str(path)])
    told = capsys.readouterr()
    assert "the trainer's devices ('auto') are no number, and are taken to be 1" in told.err
    plan.main(["--config", str(path), "--world-size", "2", "--split", "val"])
    told = capsys.readouterr()
    assert told.err == ""


def test_the_trainer_s_ranks_are_the_default(config, run):
    [row] = run("--config", config())[1]["epochs"]
    assert row["world_size"] == 4


@pytest.mark.parametrize(
    "arguments",
    [["--world-size", "0"], ["--world-size", "a"], ["--split", "test"]],
)
def test_what_cannot_be_planned_is_refused(config, run, arguments):
    assert run("--config", config(), *arguments)[0] == 2


def test_a_split_that_is_several_sets_is_answered_by_their_names(config, capsys):
    path = config(val=None, val_sets={"few": config.shards, "many": config.shards})
    with pytest.raises(SystemExit):
        plan.main(["--config", str(path), "--split", "val"])
    message = "no split 'val'; name one of ['train', 'val/few', 'val/many'] by --split"
    assert message in capsys.readouterr().err


def test_a_plan_without_a_step_says_what_to_change(config, capsys):
    plan.main(["--config", str(config()), "--world-size", "64"])
    out = capsys.readouterr().out
    assert "with 64 ranks no step is full, and a run will refuse that; lower the batch" in out


def test_a_plan_remarks_which_worlds_drop_more_than_one_percent(config, capsys):
    """Of 23 samples 3 are dropped by one rank and by two, and 64 ranks have no step at all."""
    plan.main(["--config", str(config(batch_size=10)), "--world-size", "1,2,64"])
    out = capsys.readouterr().out
    assert "with 1 rank it drops 3 of 23 samples (13.0 %) in each epoch" in out
    assert out.count(" it drops ") == 2


def test_a_plan_that_drops_little_or_draws_with_replacement_remarks_nothing(config, capsys):
    resampled = yaml.safe_load(config().read_text())["data"]["train"] | {"sampling": "resampled"}
    for changes in ({"batch_size": 23}, {"batch_size": 10, "train": resampled}):
        plan.main(["--config", str(config(**changes)), "--world-size", "1"])
        assert " it drops " not in capsys.readouterr().out


# --- the arithmetic


def needs(sampling="shuffled", streamed=True, world_size=8, ranks=4, workers=2, size=10**6, **more):
    return footprint(
        plan_epoch(1000, 10, world_size, "drop"),
        DataShape(100, 1000, size, streamed),
        Workers(ranks, workers, shuffle_buffer=50),
        sampling,
        **more,
    )


def test_nodes_share_what_is_read():
    found = needs()
    assert (found.nodes, found.samples_per_node, found.bytes_read) == (2, 480, 480_000)
    assert (found.shards_per_rank, found.shards_per_worker) == (12.5, 6.25)
    assert found.buffer_bytes == 4 * 2 * 50 * 1000


def test_unknown_sizes_stay_unknown():
    found = needs(size=None)
    assert (found.bytes_read, found.cache_bytes) == (None, None)


@pytest.mark.parametrize("sampling", ["resampled", "shuffled", "sequential"])
@pytest.mark.parametrize("streamed", [True, False])
def test_a_node_reads_some_shards_and_never_more_than_there_are(sampling, streamed):
    alone = needs(sampling, streamed, world_size=4)
    shared = needs(sampling, streamed, world_size=40)
    assert 0 < shared.shards_touched <= alone.shards_touched <= 100
    assert alone.cache_bytes <= 10**6


def test_a_node_that_reads_all_by_draws_meets_two_thirds_of_the_shards():
    assert needs("resampled", world_size=4).shards_touched == pytest.approx(
        100 * (1 - 0.99**100), rel=0.05
    )


# --- remote shards


@pytest.mark.parametrize("ranks", ["0", "-3"])
@pytest.mark.parametrize("tool", [plan, cache])
def test_too_few_ranks_of_a_node_are_refused(config, capsys, tool, ranks):
    action = ["fill"] * (tool is cache)
    with pytest.raises(SystemExit, match="2"):
        tool.main([*action, "--config", str(config()), "--ranks-per-node", ranks])
    assert f"--ranks-per-node must be at least 1, got {ranks}" in capsys.readouterr().err


THIRD = {"hash_of": "key", "of": 3, "parts": [0]}


def test_what_a_filter_leaves_is_planned_and_said(config, run, tmp_path, capsys):
    urls = str(tmp_path / "data" / "*.tar")
    path = config(train={"urls": urls, "sampling": "shuffled", "exclude": THIRD})
    _, document = run("--config", path, "--world-size", "1")
    assert (document["held"], document["samples"]) == (23, document["kept"])
    assert 0 < document["kept"] < 23
    assert document["epochs"][0]["steps"] == document["kept"] // 2
    plan.main(["--config", str(path)])
    assert f"kept: {document['kept']}\n" in capsys.readouterr().out
    assert run("--config", config())[1]["kept"] is None
