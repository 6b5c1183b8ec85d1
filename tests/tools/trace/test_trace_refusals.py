"""What `trace` cannot answer is refused in one line."""

from functools import partial

import pytest

from lightning_shards.tools import trace


@pytest.mark.parametrize("steps", ["5", "a:b", "3:3", "4:2", "-1:2", "1:2:3", ""])
def test_steps_that_are_no_range_are_refused(steps, write_config, fails):
    assert "--steps must be A:B" in fails(write_config(), steps=steps)


def test_a_step_beyond_the_epoch_is_refused(write_config, fails):
    assert "not in an epoch of 5 steps" in fails(write_config(), steps="4:6")


def test_an_epoch_below_zero_is_refused(write_config, fails):
    assert "epoch must be at least 0" in fails(write_config(), epoch=-1)


def test_a_world_of_no_ranks_is_refused(write_config, fails):
    assert "0" in fails(write_config(), "--world-size=0")


@pytest.mark.parametrize("split", ["val", "nonsense"])
def test_an_unknown_split_is_refused(split, write_config, fails):
    assert f"there is no {split!r} split" in fails(write_config(), f"--split={split}")


def test_a_missing_config_is_refused(tmp_path, fails):
    assert "absent.yaml" in fails(tmp_path / "absent.yaml")


@pytest.mark.parametrize("text", ["", "[1, 2]", "data:", "data: 3", "{", "model: {}", "\0"])
def test_a_config_without_our_section_is_refused(text, write_config, fails):
    assert "config" in fails(write_config(text=text))


@pytest.mark.parametrize(
    "options", [{"batch": 2}, {"batch_size": 0}, {"fields": None}, {"train": {"url": "x"}}]
)
def test_a_wrong_section_is_refused(options, write_config, fails):
    assert next(iter(options)).split("_")[0] in fails(write_config(**options))


def test_an_interpolation_that_leads_nowhere_is_refused(write_config, fails):
    said = "Interpolation key 'nowhere' not found, at"
    assert f"{said} 'trainer.devices'" in fails(write_config(trainer={"devices": "${nowhere}"}))
    assert f"{said} 'data.seed'" in fails(write_config(seed="${nowhere}"))


def test_a_missing_shard_is_refused(write_config, fails, tmp_path):
    config = write_config({"train": {"urls": str(tmp_path / "absent.tar")}})
    assert "absent.tar" in fails(config)


def test_an_abbreviated_option_is_refused(write_config, capsys):
    call = partial(trace.main, ["--conf", str(write_config()), "--epoch=0", "--steps=0:1"])
    with pytest.raises(SystemExit, match="2"):
        call()
    assert "--config" in capsys.readouterr().err
