"""What cannot work ends in one line that names the key, the value and the remedy."""

import re
import sys

import pytest
import yaml

from lightning_shards.__main__ import main
from lightning_shards.errors import ConfigError, SampleError, ShardNotFoundError, TransformError


@pytest.mark.usefixtures("transforms")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--data.trian.urls=x", r"unrecognized .*: --data.trian.urls=x; did you mean 'train'\?"),
        ("--trainer.max_epoch=3", r"unrecognized .*; did you mean 'max_epochs'\?"),
        ("--data.prefetch_factor=3", r"unr.*; did you mean 'data\.loader\.prefetch_factor'\?"),
        ("--data.train.batchsize=3", r"data\.train: Option 'batchsize' .* mean 'batch_size'\?"),
        ("--data.batch_size=1:30", "data: YAML reads 1:30 in line 1 as a number of base 60; .*"),
        ("--data.batch_size=many", r"data\.batch_size: Expected a <class 'int'>.*: many"),
        ("--data.train.batch_size=many", r"data\.train\.batch_size: Expected .*'int'>.*: many"),
        ("--data.val.reader=wids", r"data\.val\.reader: .*'auto', 'stream', 'indexed'.*: wids"),
        ("--data.test.batch_size=3", r"data\.test: urls is empty; give a path, a pattern like .*"),
        ("--data.train.batch_size=0", "data.train: batch_size must be a whole number of .* got 0"),
        ("--data.decode={label: pickle}", "data: field 'label' would be decoded as 'pickle', .*"),
        (
            "--data.transforms.label=my_transforms.half",
            "data: transforms.label is 'my_transforms.half', which cannot be loaded: .*'half'",
        ),
        (
            "--data.train.stages+={class_path: my_transforms.Times, init_args: {faktor: 1}}",
            r"data.train: stages\[0\] .*Times.* cannot be loaded: .*'faktor'.* mean 'factor'\?",
        ),
        ("--trainer.accelerator=quantum", "trainer: You selected an invalid accelerator name.*"),
        ("--data.batch_size=${data.sed}", "Interpolation key 'data.sed' not found, .*batch_size'"),
        ("--data.batch_size=${data.seed", r"no viable alternative at input '\$\{data.seed'.*"),
    ],
)
def test_an_option_that_cannot_work_is_refused_in_one_line(option, message, refused):
    told = refused(option)
    assert re.fullmatch(message, told), told  # a dot is no end of a line


def test_what_is_no_section_of_settings_is_told(refused, config):
    assert refused(trainer=None).startswith("trainer: it must be a mapping of settings, got None")
    for loader in (3, [1]):
        told = refused(data=config["data"] | {"loader": loader})
        assert told.startswith(f"data.loader: it must be a mapping of settings, got {loader}; give")


def test_an_error_in_the_users_own_code_keeps_its_traceback(make_cli, tmp_path, monkeypatch):
    (tmp_path / "broken_transforms.py").write_text("def flip(image):\n    return imag\n\n1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        make_cli("--data.transforms.label=broken_transforms.flip")


@pytest.mark.parametrize(
    "text", ["data:\n  val: a.tar\n  val: b.tar\n", "data: {val: a, val: b}\n"]
)
def test_a_key_that_is_twice_in_a_file_is_refused(text, refused, tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text(text)
    assert "found duplicate key val in" in refused("--config", str(path))


# --- fits -----------------------------------------------------------------------------------------


@pytest.fixture
def fit(tmp_path, pack_shards, config, monkeypatch):
    """Fits on two shards of 12 labels."""
    pack_shards([5, 7], "train")
    shards = {"urls": "shards/train-*.tar"}
    config["data"] |= {"train": shards, "val": shards, "fields": {"label": "cls"}}
    config["data"] |= {"loader": {"cache_dir": "cache"}, "decode": None}
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    common = ["--config=experiment.yaml", "--model=BoringModel", "--trainer.num_sanity_val_steps=0"]

    def fitted(*options):
        monkeypatch.setattr(sys, "argv", ["lightning-shards", "fit", *common, *options])
        main()

    return fitted


@pytest.mark.parametrize(
    ("options", "message", "error"),
    [
        (
            ["--data.train.urls=shards/none-*.tar"],
            "train: no file matches shards/none-*.tar",
            ShardNotFoundError,
        ),
        (
            ["--data.train.reader=indexed", "--data.train.stages+=my_transforms.double"],
            "reader='indexed' of 'train' reads samples by their offsets, and the split has stages",
            ConfigError,
        ),
        (
            ["--data.train=null"],
            "there is no 'train' split; this module was given ['val']",
            ConfigError,
        ),
        (
            ["--data.train.sampling=shuffled", "--data.train.dataset_size=5"],
            "dataset_size=5 of 'train' differs from the 12 samples that its shards hold",
            ConfigError,
        ),
        (
            ["--data.fields={label: png}", "--data.decode={label: int}"],
            "train-000000.tar: member 'png' (",
            SampleError,
        ),
        (
            ["--data.transforms.label=builtins.iter", "--data.num_workers=1"],
            "the transform of field 'label' failed on sample '00000",
            TransformError,
        ),
    ],
)
@pytest.mark.usefixtures("transforms")
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")  # BoringModel's
def test_what_does_not_go_with_the_shards_is_one_line_or_with_traceback_the_error_itself(
    options, message, error, fit, capsys
):
    with pytest.raises(SystemExit) as ended:
        fit(*options)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    last = told.splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert last.endswith("(--traceback shows where)")
    with pytest.raises(error):
        fit(*options, "--traceback")
