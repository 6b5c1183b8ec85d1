"""What a Trainer says of a split that is not there."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
from fit_recorder import STEPS, Recorder, TrainsOnly

from lightning_shards.errors import ConfigError


def test_a_fit_without_a_val_split_runs_without_a_warning(  # a warning is an error here
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    model = TrainsOnly()
    make_trainer().fit(model, make_data(val=None))
    assert len(model.steps) == 3 * STEPS
    assert model.validations == []


def test_a_validation_step_that_has_no_val_split_is_missed_and_told_so(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    model = Recorder()
    with pytest.warns(UserWarning, match="defined a `validation_step` but have no"):
        make_trainer().fit(model, make_data(val=None))
    assert len(model.steps) == 3 * STEPS
    assert model.validations == []


def test_a_missing_split_is_an_error_that_says_how_to_add_it(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    data = make_data(train=None)
    with pytest.raises(ConfigError, match=r"no 'train' split.*train=SplitConfig"):
        make_trainer().fit(Recorder(), data)
    for verb, split in (("test", "test"), ("predict", "predict")):
        with pytest.raises(ConfigError, match=rf"no '{split}' split.*{split}=SplitConfig"):
            getattr(make_trainer(), verb)(Recorder(), data)


def test_a_missing_val_split_is_an_error_for_validate(
    make_data: Callable[..., Any], make_trainer: Callable[..., pl.Trainer]
) -> None:
    with pytest.raises(ConfigError, match=r"no 'val' split.*val=SplitConfig"):
        make_trainer().validate(Recorder(), make_data(val=None))
