"""Every experiment in configs/ is read and run by a test."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_shards import SetEpoch, ShardCLI, ShardDataModule

pytestmark = [
    # Lightning 2.6's own use of jsonargparse 4.53
    pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"),
    # CSVLogger is good enough here
    pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed"),
]

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))


def pack_digits(folder: Path) -> None:
    """What `python examples/quickstart.py --pack-only` does, in this process."""
    sys.path.insert(0, str(ROOT))
    try:
        from examples.quickstart import pack_digits as pack  # noqa: PLC0415 needs the path above
    finally:
        sys.path.remove(str(ROOT))
    pack(folder / "data/digits")


# name: (packs what it reads, what makes its run short)
RUNS: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "digits.yaml": (pack_digits, ["--trainer.max_epochs=1"]),
}


def test_every_config_is_run_by_a_test() -> None:
    assert sorted(RUNS) == CONFIGS


@pytest.mark.parametrize("name", CONFIGS)
def test_the_command_of_a_config_is_in_its_first_line(name: str) -> None:
    first = (ROOT / "configs" / name).read_text().splitlines()[0]
    assert first == f"# lightning-shards fit --config configs/{name}"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))  # models of examples/ are named in it
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # seed_everything sets it, this takes it back
    monkeypatch.setattr(sys, "argv", ["lightning-shards"])
    cli = ShardCLI(args=["--config", str(ROOT / "configs" / name)], run=False)
    assert isinstance(cli.datamodule, ShardDataModule)
    assert SetEpoch in map(type, cli.trainer.callbacks)


@pytest.mark.slow
@pytest.mark.ddp
@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_trains_by_its_command(
    name: str, tmp_path: Path, start_program: Callable[..., Any]
) -> None:
    pack_data, shorter = RUNS[name]
    pack_data(tmp_path)
    for folder in ("configs", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    command = Path(sys.executable).with_name("lightning-shards")
    options = ["fit", "--config", f"configs/{name}", *shorter]
    with start_program([str(command), *options], tmp_path) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count("data throughput: ") == 1
    assert list(tmp_path.glob("lightning_logs/version_0/checkpoints/*.ckpt"))
    assert list(tmp_path.glob("lightning_logs/version_0/config.yaml"))
