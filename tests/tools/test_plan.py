"""`lightning-shards plan` says what the loader will do, and asks for it in time."""

import pytest

from lightning_shards import ShardDataModule
from lightning_shards.tools import plan
from tests.mixed_shards import mix_of

COUNTS = [7, 4, 12]


@pytest.fixture
def shards(pack_shards):
    return pack_shards(COUNTS)


@pytest.fixture
def config(write_config, shards):
    """Writes a configuration with splits `train` and `val` of the same shards."""
    train = {"urls": shards, "sampling": "shuffled"}
    return lambda trainer=None, **changes: write_config(
        trainer=trainer, **{"train": train, "val": shards} | changes
    )


@pytest.fixture
def run(run_json):
    return lambda *arguments: run_json(plan.main, arguments)


@pytest.mark.parametrize("split", ["train", "val", "predict/few"])
def test_the_numbers_are_those_of_the_loader(config, shards, run, split):
    sets = {"many": {"urls": "nowhere.tar"}, "few": shards}
    path = config(predict_sets=sets)
    module = ShardDataModule.from_config(path)
    for world_size in (1, 3, 8):
        status, row = run("--config", path, "--split", split, "--world-size", world_size)
        assert (status, row["split"], row["world_size"]) == (0, split, world_size)
        served = []
        for rank in range(world_size):
            loader = module.loader(split, rank=rank, world_size=world_size)
            batches = list(loader)
            assert len(batches) == row["steps"] == len(loader)
            served += [key for batch in batches for key in batch["__key__"]]
        assert len(set(served)) == row["samples"] - row["dropped"] == sum(COUNTS) - row["dropped"]
        assert len(served) == row["samples"] - row["dropped"] + row["repeated"]


def test_the_trainer_s_ranks_are_the_default_and_a_note_says_where_they_are_unknown(
    config, run, capsys
):
    for trainer, size in [({"devices": 2, "num_nodes": 2}, 4), ({"devices": [0, 1]}, 2)]:
        assert run("--config", config(trainer))[1]["world_size"] == size
    plan.main(["--config", str(config({"devices": "auto"}))])
    told = capsys.readouterr().err
    assert "the trainer's devices ('auto') are no number, and are taken to be 1" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--world-size", "0"], "argument --world-size: must be at least 1, got 0"),
        (["--split", "test"], "there is no 'test' split"),
        (["--split", "val"], "given ['train', 'val/few', 'val/many']: name one of these"),
        (["--world-size", "64"], "train: 23 samples do not fill one step of 64 ranks x 2 samples"),
    ],
)
def test_what_cannot_be_planned_is_refused(config, shards, capsys, arguments, said):
    path = config(val=None, val_sets={"few": shards, "many": shards})
    with pytest.raises(SystemExit, match="2"):
        plan.main(["--config", str(path), *arguments])
    assert said in capsys.readouterr().err


def test_what_a_filter_leaves_is_planned_and_said(config, shards, run, capsys):
    third = {"hash_of": "key", "of": 3, "parts": [0]}
    path = config(train={"urls": shards, "sampling": "shuffled", "exclude": third})
    _, document = run("--config", path, "--world-size", "1")
    assert (document["held"], document["samples"]) == (23, document["kept"])
    assert 0 < document["kept"] < 23
    assert document["steps"] == document["kept"] // 2
    plan.main(["--config", str(path)])
    assert f"kept: {document['kept']}\n" in capsys.readouterr().out
    assert run("--config", config())[1]["kept"] is None


# --- mixtures


def test_the_table_names_the_passes_of_an_epoch_and_of_the_run(config, tmp_path, capsys):
    """Of a mixture with rounds of 8 in epochs of 40 samples."""
    names = ("web", "labels", "more")  # with weights of 5, 2 and 1
    train = {"mix": mix_of(tmp_path / "shards", names), "round": 8, "sampling": "shuffled"}
    train |= {"dataset_size": 40, "schedule": [{"epoch": 2, "weights": {"more": 1}}]}
    images = {"fields": {"image": "png", "label": "cls"}, "decode": {"image": "gray"}}
    path = config({"max_epochs": 3}, train=train, val=None, batch_size=8, **images)
    plan.main(["--config", str(path), "--world-size", "5"])
    assert capsys.readouterr().out.endswith(
        "\n"
        "component  samples  shards  in_epoch_0  passes_of_epoch_0  in_run  passes_of_run\n"
        "web             17       4          25              1.471      50          2.941\n"
        "labels           6       2          10              1.667      20          3.333\n"
        "more             7       2           5             0.7143      50          7.143\n"
    )
