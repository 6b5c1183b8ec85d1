"""`lightning-shards plan` says what the loader will do, and asks for it in time."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from lightning_shards import ShardDataModule
from lightning_shards.plan.epoch import plan_epoch
from lightning_shards.plan.footprint import DataShape, Workers, footprint
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
    settings["trainer"] = {"devices": "auto", "limit_train_batches": 3}
    path.write_text(yaml.safe_dump(settings))
    assert run("--config", path)[1]["limit_train_batches"] == 3
    plan.main(["--config", str(path)])
    told = capsys.readouterr()
    assert "the trainer's devices ('auto') are no number, and are taken to be 1" in told.err
    assert "limit_train_batches=3 ends epochs sooner; the table is of a whole one" in told.out
    plan.main(["--config", str(path), "--world-size", "2", "--split", "val"])
    told = capsys.readouterr()
    assert (told.err, "limit_train_batches" in told.out) == ("", False)


def test_memory_is_counted_from_the_first_samples(config, run, monkeypatch):
    config_of_three = config(num_workers=3)
    assert run("--config", config_of_three)[1]["epochs"][0]["shm_bytes"] == 0  # it is too little
    monkeypatch.setattr("lightning_shards.workers.messages.SHARED_BYTES", 1)
    _, document = run("--config", config_of_three, "--world-size", "1,4")
    assert document["batch_bytes"] == 2 * (3 * 16 * 16 + 8 + 5 + 16)  # pixels, label, key and id
    one, four = document["epochs"]
    assert one["shm_bytes"] == document["batch_bytes"] * 16 * 3 * (3 + 2)
    assert four["shm_bytes"] == 2 * one["shm_bytes"]  # two ranks on each node
    assert (one["nodes"], four["nodes"]) == (1, 2)
    assert run("--config", config(num_workers=0))[1]["epochs"][0]["shm_bytes"] == 0


def test_the_trainer_s_ranks_are_the_default(config, run):
    [row] = run("--config", config())[1]["epochs"]
    assert row["world_size"] == 4


def test_an_index_of_a_million_remote_shards_is_planned_in_seconds(tmp_path):
    shards, per_shard = 10**6, 10**4
    entry = {"nsamples": per_shard, "filesize": 10**8}
    listed = [entry | {"url": f"{shard:07d}.tar"} for shard in range(shards)]
    (tmp_path / "wids.json").write_text(json.dumps({"wids_version": 1, "shardlist": listed}))
    config = {
        "train": {"urls": "https://host/{0000000..0999999}.tar"},
        "fields": {"image": "jpg"},
        "batch_size": 256,
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data": config}))
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "lightning_shards", "plan", "--config", "config.yaml", "--index",
         "wids.json", "--world-size", "1,64,4096", "--json"],
        cwd=tmp_path, capture_output=True, check=True, timeout=240,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["samples"] == shards * per_shard
    assert document["is_remote"]
    steps = [row["steps"] for row in document["epochs"]]
    assert steps == [shards * per_shard // (256 * size) for size in (1, 64, 4096)]
    assert document["epochs"][0]["bytes_to_fetch"] == steps[0] * 256 * 10**8 // per_shard
    assert time.perf_counter() - begun < 200


@pytest.mark.parametrize(
    "arguments",
    [["--world-size", "0"], ["--world-size", "a"], ["--split", "test"], ["--index", "no"]],
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
    assert "note: with 1 rank it drops 3 of 23 samples (13.0 %) in each epoch" in out
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
        Workers(ranks, workers, 2, shuffle_buffer=50),
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
    assert (found.bytes_read, found.cache_bytes, found.shm_bytes) == (None, None, None)


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


def remote_plan_of(tmp_path, run, shards, per_shard, filesize, entries=None, **train):
    entry = {"nsamples": per_shard, "filesize": filesize}
    listed = [
        entry | {"url": f"{shard:06d}.tar"} | more
        for shard, more in zip(range(shards), entries or [{}] * shards, strict=True)
    ]
    (tmp_path / "wids.json").write_text(json.dumps({"wids_version": 1, "shardlist": listed}))
    urls = f"s3://bucket/{{000000..{shards - 1:06d}}}.tar"
    train = {"urls": urls, "sampling": "shuffled", "reader": "indexed"} | train
    config = {
        "train": train,
        "fields": {"image": "jpg"},
        "batch_size": 256,
        "loader": {"cache_dir": str(tmp_path / "cache"), "cache_gib": 1000},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data": config}))
    arguments = ("--config", tmp_path / "config.yaml", "--index", tmp_path / "wids.json")
    begun = time.process_time()
    status, document = run(*arguments, "--world-size", "8,64", "--ranks-per-node", "8")
    assert status == 0
    return document, time.process_time() - begun


def test_thirteen_thousand_remote_shards_are_planned_from_their_index(tmp_path, run):
    document, seconds = remote_plan_of(tmp_path, run, 13_916, 4096, 600_000_000)
    assert seconds < 2
    one, eight = document["epochs"]
    assert document["network"] == {
        "rate": 1000,
        "pieces": 13_916 * 64,
        "piece_bytes": 9_375_000,
        "cache_gib": 1000,
        "suitable": None,
    }
    assert one["requests"] == pytest.approx(2 * 13_916 * 64, rel=1e-3)  # of two parts each
    assert one["requests_per_s"] == pytest.approx(8 * 1000 / 32, rel=1e-3)
    assert one["bytes_to_fetch"] == pytest.approx(13_916 * 6e8, rel=1e-3)
    assert eight["bytes_to_fetch"] == pytest.approx(13_916 * 6e8, rel=1e-2)  # each reads all runs
    assert eight["requests_per_s"] == pytest.approx(8 * one["requests_per_s"], rel=1e-2)
    assert one["working_set_bytes"] == 2 * 16_384 * 600_000_000 // 4096
    assert 0.11 < one["kept_fraction"] < 0.13
    assert one["bytes_of_later_epochs"] == pytest.approx(0.88 * one["bytes_to_fetch"], rel=0.02)
    assert one["cache_bytes_for_all"] > one["bytes_to_fetch"]


@pytest.mark.parametrize(
    ("table", "run_of_samples"), [({"members": "000001.tar.members"}, 8), ({}, None)], ids=str
)
def test_the_reader_follows_from_the_tables_that_the_index_names(
    tmp_path, run, table, run_of_samples
):
    """All shards must have one: `auto` streams what has none."""
    entries = [{"members": "000000.tar.members"}, table]
    document, _ = remote_plan_of(
        tmp_path, run, 2, 4096, 600_000_000, entries=entries, reader="auto", shuffle_run=8
    )
    pieces = (document["network"] or {}).get("pieces")
    assert pieces == (None if run_of_samples is None else 2 * 4096 // run_of_samples)


def test_small_samples_get_a_longer_run(tmp_path, run, capsys):
    document, _ = remote_plan_of(tmp_path, run, 10, 100_000, 260_000_000)
    assert document["network"]["suitable"] == {"run": 512, "block": 131_072}
    plan.main(["--config", str(tmp_path / "config.yaml"), "--index", str(tmp_path / "wids.json")])
    assert "take shuffle_run: 512 and shuffle_block: 131072" in capsys.readouterr().out


@pytest.mark.parametrize("rate", ["0", "-1", "inf", "nan"])
def test_a_rate_that_is_none_is_refused(config, run, rate):
    assert run("--config", config(), "--rate", rate)[0] == 2


THIRD = {"hash_of": "key", "of": 3, "parts": [0]}


def test_what_a_filter_leaves_is_planned_and_said(config, run, tmp_path, capsys):
    urls = str(tmp_path / "data" / "*.tar")
    path = config(train={"urls": urls, "sampling": "shuffled", "exclude": THIRD})
    _, document = run("--config", path, "--world-size", "1")
    assert (document["held"], document["samples"]) == (23, document["kept"])
    assert 0 < document["kept"] < 23
    assert document["epochs"][0]["steps"] == document["kept"] // 2
    plan.main(["--config", str(path)])
    assert f"keep and exclude leave {document['kept']} of 23 samples" in capsys.readouterr().out
    assert run("--config", config())[1]["kept"] is None


def test_an_index_alone_cannot_say_what_a_filter_leaves(config, tmp_path, capsys):
    urls = str(tmp_path / "data" / "*.tar")
    path = config(train={"urls": urls, "sampling": "shuffled", "exclude": THIRD})
    wids = {"shardlist": [{"url": "a.tar", "nsamples": 9}], "wids_version": 1}
    (tmp_path / "index.json").write_text(json.dumps(wids))
    with pytest.raises(SystemExit):
        plan.main(["--config", str(path), "--index", str(tmp_path / "index.json")])
    assert "exclude of 'train' asks the member tables" in capsys.readouterr().err
