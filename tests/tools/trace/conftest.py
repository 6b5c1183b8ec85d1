"""Shards and configurations to trace, and runs of the command."""

import json

import pytest

from lightning_shards.tools import trace

WORLD_SIZE, EPOCHS = 2, 3
COUNTS = [5, 9, 0, 8]
FIFTH = {"hash_of": "key", "of": 5, "parts": [0]}

SPLITS = {
    "kept indexed": {"train": {"sampling": "shuffled", "exclude": FIFTH}},
    "kept stream": {"train": {"exclude": FIFTH}},
    "resampled stream": {"train": {}},
    "resampled stream, no buffer": {"train": {"shuffle_buffer": 0}},
    "shuffled stream": {"train": {"sampling": "shuffled", "reader": "stream"}},
    "shuffled indexed": {"train": {"sampling": "shuffled", "shuffle_run": 3, "shuffle_block": 8}},
    "resampled indexed": {"train": {"reader": "indexed", "shuffle_run": 2}},
    "padded": {"train": {"sampling": "shuffled", "remainder": "pad"}},
    "padded stream": {"train": {"sampling": "shuffled", "remainder": "pad", "reader": "stream"}},
    "balanced": {"val": {}},
    "balanced stream": {"val": {"reader": "stream"}},
}


@pytest.fixture(scope="module")
def folder(pack_into, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    pack_into(folder, COUNTS)
    return folder


@pytest.fixture
def settings(folder):
    """The options of `ShardDataModule` in plain values; splits without urls get them."""

    def make(splits, **options):
        urls = {"urls": str(folder / "shard-*.tar")}
        return {
            "fields": {"label": "cls"},
            "batch_size": 2,
            "num_workers": 0,
            "loader": {"cache_dir": str(folder / "cache")},
            **{name: urls | split for name, split in splits.items()},
        } | options

    return make


@pytest.fixture
def write_config(tmp_path, settings):
    """Writes a configuration of LightningCLI (JSON is YAML), with a model that does not exist."""

    def write(splits=None, *, trainer=None, text=None, **options):
        path = tmp_path / "config.yaml"
        document = {
            "seed_everything": 3,
            "trainer": {"devices": WORLD_SIZE} if trainer is None else trainer,
            "model": {"class_path": "no.such.Model"},
            "data": settings({"train": {}} if splits is None else splits, **options),
        }
        path.write_text(json.dumps(document) if text is None else text)
        return path

    return write


@pytest.fixture
def traced(capsys):
    """Runs the command and gives its JSON document."""

    def run(config, *, epoch=0, steps="0:1", more=()):
        command = ["--config", str(config), "--epoch", str(epoch), "--steps", steps, "--json"]
        trace.main([*command, *more])
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def fails(capsys):
    """Runs the command and gives the one line that it ends with."""

    def run(config, *more, epoch=0, steps="0:1"):
        with pytest.raises(SystemExit) as ended:
            trace.main(["--config", str(config), f"--epoch={epoch}", f"--steps={steps}", *more])
        printed = capsys.readouterr()
        assert (ended.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
        return printed.err

    return run


def rows_in(document):
    """The rows of a document: by step, then by rank."""
    return [
        [[[row["key"], row["shard"], row["sample"]] for row in rank] for rank in step["ranks"]]
        for step in document["steps"]
    ]
