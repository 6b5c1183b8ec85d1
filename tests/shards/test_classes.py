"""`classes.json` beside shards: its forms, what is refused, and the labels that it numbers."""

import json

import pytest

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.shards.classes import agreed_classes, known_classes, numbered_classes


def numbered(names):
    return numbered_classes(names, "x")


@pytest.fixture
def write(tmp_path):
    """Writes the classes of a folder, and gives the URL of a shard in it."""

    def written(content, folder="data"):
        (tmp_path / folder).mkdir(exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / folder / "classes.json").write_text(text)
        return str(tmp_path / folder / "0.tar")

    return written


@pytest.mark.parametrize("content", [["cat", "dog"], {"cat": 0, "dog": 1}, {"dog": 1, "cat": 0}])
def test_a_list_and_an_object_say_the_same(write, content):
    classes = agreed_classes([write(content)])
    assert classes == numbered(["cat", "dog"])
    assert classes.digest() == numbered(["cat", "dog"]).digest()
    assert [classes.name_of(text) for text in ("0", " 1\n", "2", "cat")] == ["cat", "dog", "", ""]


@pytest.mark.parametrize(
    ("label", "number"),
    [(b"cat", 0), (b" dog\n", 1), (b"1", 1), (b"0\n", 0), ("ä bird".encode(), 2)],
)
def test_a_label_is_a_name_or_a_number(label, number):
    assert numbered(["cat", "dog", "ä bird"]).number_of(label) == number


@pytest.mark.parametrize("label", [b"", b"3", b"01", b"\xff"])
def test_a_label_of_no_class_is_an_error(label):
    with pytest.raises(SampleError, match=r"none of the 3 classes of x \('cat', 'dog', 'bird'\)"):
        numbered(["cat", "dog", "bird"]).number_of(label)


def test_names_that_are_numbers_are_only_names():
    classes = numbered(["3", "7"])
    assert [classes.number_of(label) for label in (b"3", b"7")] == [0, 1]
    with pytest.raises(SampleError, match="decode it as 'int' if labels are numbers"):
        classes.number_of(b"0")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("3", "must be a list of names, .*; got 3$"),
        ([], "names no class"),
        (["a", "a"], "has the class 'a' twice"),
        ({"a": 0, "b": 0}, "'b' twice, or another one with its number 0"),
        (["a", ""], "has '': 1 in place of the name of a class and its number"),
        ({"a": -1}, "has 'a': -1 in place"),
    ],
)
def test_a_file_of_something_else_is_refused(write, content, message):
    url = write(content)
    with pytest.raises(ConfigError, match=message):
        agreed_classes([url])


def test_folders_must_agree(write):
    one, same, other = write(["a", "b"]), write({"a": 0, "b": 1}, "same"), write(["b"], "other")
    assert agreed_classes([one, same, one]).numbers == {"a": 0, "b": 1}
    for read in (agreed_classes, known_classes):
        with pytest.raises(ConfigError, match=r"have different classes: 'a' is 0 and absent; pack"):
            read([one, other])


def test_where_there_are_none_the_message_names_the_setting(write, tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere has none .* classes: \{label: \[cat, dog\]\}$"):
        agreed_classes([write(["a"]), str(tmp_path / "nowhere" / "0.tar")])
    with pytest.raises(ConfigError, match=r"https://h has none .* classes: \{label: ") as raised:
        agreed_classes(["https://user:secret@h/0.tar?secret"])
    assert "secret" not in str(raised.value)


def test_tools_take_what_there_is_and_say_what_is_passed_over(write, tmp_path, caplog):
    one, wrong = write(["a"]), write("[3]", "wrong")
    assert known_classes([str(tmp_path / "nowhere" / "0.tar"), "https://h/0.tar"]) is None
    assert known_classes([one, wrong]).numbers == {"a": 0}
    (message,) = caplog.messages
    assert message.startswith(f"passed over: {tmp_path}/wrong/classes.json has 3: 0 in place")
