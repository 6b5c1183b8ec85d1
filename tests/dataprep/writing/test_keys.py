"""Names of files and of samples become keys that every reader gives back."""

from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_shards.dataprep.tar_writer import check_sample, escape_key, key_of_path
from lightning_shards.errors import SampleError
from lightning_shards.shards.tar.walk import split_name


@given(st.text(min_size=1).filter(lambda text: max(text) < "\ud800" or max(text) > "\udfff"))
def test_an_escaped_name_gives_the_name_back(text):
    assert unquote(escape_key(text)) == text


@given(st.text(min_size=1, max_size=300) | st.text("./_a\udce9\ud800", min_size=1, max_size=9))
@example("../a").via("a table beside the folder of its images")
def test_any_escaped_name_is_a_key(text):
    check_sample(escape_key(text), ["cls"])


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("../images/1.jpg", "images/1"),
        ("/data//images/./1.v2.jpg", "data/images/1%2Ev2"),
        ("a/../../b/1.jpg", "b/1"),
        ("./1.jpg", "1"),
        ("../.jpg", "%2Ejpg"),
    ],
)
def test_paths_become_keys_that_lead_nowhere(path, key):
    assert key_of_path(path) == key
    check_sample(key, ["cls"])


@given(st.text(), st.text())
def test_what_is_accepted_is_read_back(key, field):
    try:
        check_sample(key, [field])
    except SampleError:
        return
    assert split_name(f"{key}.{field}") == (key, field)
