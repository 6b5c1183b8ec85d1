"""The command line: what arrives, what is added, what it prints."""

from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_shards import (
    DataThroughputMonitor,
    EpochDigest,
    ExactResume,
    LoaderConfig,
    SetEpoch,
    SplitConfig,
)

OURS = (SetEpoch, ExactResume, EpochDigest, DataThroughputMonitor)


def test_options_win_over_the_yaml(make_cli):
    of_train = ("--data.train.urls=other-0.tar::other-1.tar", "--data.train.batch_size=3")
    others = ("--data.loader.prefetch_factor=1", "--data.val=null", "--data.batch_size", "16")
    data = make_cli(*of_train, *others).datamodule
    assert data.splits["train"] == SplitConfig("other-0.tar::other-1.tar", batch_size=3)
    assert data.splits["val"] is None
    assert (data.loader_config, data.batch_size) == (LoaderConfig(prefetch_factor=1), 16)


@pytest.mark.parametrize(
    ("val", "options", "wanted"),
    [
        ("a.tar", [], SplitConfig("a.tar")),
        ({"urls": "a.tar", "batch_size": 8}, ["--data.val=b"], SplitConfig("b", batch_size=8)),
        (None, ["--data.val={a,b}-*.tar"], SplitConfig("{a,b}-*.tar")),
        ("${data.train}", [], SplitConfig("train-{000..003}.tar", batch_size=8)),
        ("${oc.select:nowhere,a}.tar", [], SplitConfig("a.tar")),
        ("a.tar", ["--data.val=null"], None),
        (["a", "b"], ["--data.val.batch_size=8"], SplitConfig(["a", "b"], batch_size=8)),
        (None, ['--data.val={"urls":"a","batch_size":8}'], SplitConfig("a", batch_size=8)),
    ],
)
def test_a_split_may_be_its_urls_alone(val, options, wanted, make_cli, config):
    assert make_cli(*options, data=config["data"] | {"val": val}).datamodule.splits["val"] == wanted


@pytest.mark.parametrize(
    ("option", "changed"),
    [
        ("web.batch_size=8", {"web": SplitConfig("w.tar", batch_size=8)}),
        ("web=x.tar", {"web": SplitConfig("x.tar", batch_size=4)}),
        ("web=[x, y]", {"web": SplitConfig(["x", "y"], batch_size=4)}),
        ("by-hand.sampling=shuffled", {"by-hand": SplitConfig("h.tar", sampling="shuffled")}),
    ],
)
def test_an_option_changes_one_set_and_leaves_the_others(option, changed, make_cli, config):
    given = {"web": {"urls": "w.tar", "batch_size": 4}, "by-hand": "h.tar"}
    data = config["data"] | {"val": None, "val_sets": given}
    module = make_cli(f"--data.val_sets.{option}", data=data).datamodule
    wanted = {"web": SplitConfig("w.tar", batch_size=4), "by-hand": SplitConfig("h.tar")} | changed
    names = module.eval_names("val")
    assert names == ["val/web", "val/by-hand"]
    assert [module.splits[name] for name in names] == [*wanted.values()]


MIX: dict[str, Any] = {
    "mix": {
        "web": {"urls": "a.tar", "weight": 3, "transforms": {"label": "builtins.float"}},
        "labels": {"urls": ["b.tar"], "weight": 0.5},
    },
    "round": 64,
    "dataset_size": 640,
    "schedule": [{"epoch": 5, "weights": {"web": 1.0, "labels": 2.0}}],
}


def test_options_change_a_mix_of_a_file(make_cli, config):
    options = ("--data.train.mix.web.weight=32", "--data.train.round=32")
    data = config["data"] | {"train": MIX}
    mix = MIX["mix"] | {"web": MIX["mix"]["web"] | {"weight": 32}}
    wanted = SplitConfig(**MIX | {"mix": mix, "round": 32})
    assert make_cli(*options, data=data).datamodule.splits["train"] == wanted


def test_files_are_merged_and_a_section_or_a_split_may_be_a_file(make_cli, tmp_path):
    """A base, then an experiment's changes; or the data of many experiments in one file."""
    (tmp_path / "changes.yaml").write_text("data: {batch_size: 16, train: {sampling: shuffled}}")
    (tmp_path / "split.yaml").write_text("urls: other.tar")
    changed = make_cli("--config", str(tmp_path / "changes.yaml")).datamodule
    assert (changed.batch_size, changed.num_workers) == (16, 0)
    wanted = SplitConfig("train-{000..003}.tar", sampling="shuffled", batch_size=8)
    assert changed.splits["train"] == wanted
    data = make_cli("--data.val", str(tmp_path / "split.yaml")).datamodule
    assert data.splits["val"].urls == "other.tar"


def test_a_callback_of_ours_that_the_yaml_brings_is_not_added_again(make_cli, config):
    named = [{"class_path": "lightning_shards.SetEpoch"}, {"class_path": "ModelCheckpoint"}]
    cli = make_cli(trainer=config["trainer"] | {"callbacks": named})
    kinds = [type(callback) for callback in cli.trainer.callbacks]
    assert [kinds.count(kind) for kind in (*OURS, ModelCheckpoint)] == [1] * (len(OURS) + 1)


def test_help_of_a_split_shows_a_sentence_under_each_field(make_cli, capsys):
    with pytest.raises(SystemExit) as ended:
        make_cli("--data.train.help")
    assert not ended.value.code
    text = " ".join(capsys.readouterr().out.split())
    assert "Shards: paths or URLs with braces, local wildcards" in text
    for name in SplitConfig.__dataclass_fields__:
        assert f"--data.train.{name} " in text
