"""What a Trainer says of a split that is not there."""

import pytest
from fit_recorder import STEPS, VAL, Recorder, TrainsOnly

from lightning_shards.errors import ConfigError


def test_a_validation_step_that_has_no_val_split_is_missed_and_told_so(make_data, make_trainer):
    model = Recorder()
    with pytest.warns(UserWarning, match="defined a `validation_step` but have no"):
        make_trainer().fit(model, make_data(val=None))
    assert len(model.steps) == 3 * STEPS
    assert model.validations == []


def test_a_missing_split_is_an_error_that_says_how_to_add_it(make_data, make_trainer):
    data = make_data(train=None)
    with pytest.raises(ConfigError, match=r"no 'train' split.*train=SplitConfig"):
        make_trainer().fit(Recorder(), data)
    for verb, split in (("test", "test"), ("predict", "predict")):
        with pytest.raises(ConfigError, match=rf"no '{split}' split.*{split}=SplitConfig"):
            getattr(make_trainer(), verb)(Recorder(), data)


def test_a_val_split_that_is_added_later_is_validated_and_one_that_is_removed_is_not(
    make_data, make_trainer
):
    added, removed = make_data(val=None), make_data()
    added.splits["val"], removed.splits["val"] = removed.splits["val"], None
    model = Recorder()
    make_trainer().fit(model, added)
    assert [len(ids) for ids in model.validations] == [sum(VAL)] * 3
    make_trainer().validate(model, added, verbose=False)
    make_trainer().fit(TrainsOnly(), removed)  # a warning is an error here
    with pytest.raises(ConfigError, match=r"no 'val' split.*val=SplitConfig"):
        make_trainer().validate(Recorder(), removed)
