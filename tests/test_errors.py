"""The tree of errors: each is ours and a builtin, and reads as it was written."""

import pickle
import re

import pytest

from lightning_shards import errors

TREE = re.findall(r"(\w+Error)(?: \((\w+)\))?", errors.__doc__.partition("::")[2])
CLASSES = [
    each
    for each in vars(errors).values()
    if isinstance(each, type)
    and issubclass(each, errors.ShardError)
    and each is not errors.ShardError
]


@pytest.mark.parametrize(("name", "builtin"), TREE)
def test_each_error_of_the_drawn_tree_is_ours_and_the_builtin(name, builtin):
    error = getattr(errors, name)
    assert issubclass(error, errors.ShardError)
    assert not builtin or builtin in {base.__name__ for base in error.__mro__}


def test_the_drawn_tree_is_whole():
    assert {name for name, _ in TREE} == {each.__name__ for each in CLASSES} | {"ShardError"}


@pytest.mark.parametrize("error", CLASSES)
def test_an_error_reads_as_it_was_written_in_other_processes_too(error):
    copied = pickle.loads(pickle.dumps(error("no 'x' here")))
    assert (type(copied), str(copied)) == (error, "no 'x' here")
